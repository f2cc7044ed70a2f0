// See fingerprint.hpp. Only the host takes part; a GPU's memory is reached through SymmetricMemory.
#include "comm/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "plan/flags.h"
#include "plan/memory_layout.h"

namespace monomoe {
namespace {

using Words = std::array<uint64_t, kFingerprintWords>;

// Word 0 says that the others are there. kOwner is whose memory the writer takes this one for; it alone differs between copies.
enum Word { kPresent, kProtocol, kVersion, kBackend, kRanks, kTopk, kHidden, kCapacity, kIntermediate, kLaunch, kCreation, kOwner, kVerdict };
constexpr const char* kNames[] = {"",     "protocol version", "library version", "backend",         "world_ranks",
                                  "topk", "hidden",           "capacity",        "max_intermediate", "launch",
                                  "creation version"};
// How ranks agree here, verdicts included; kProtocolVersion counts what their calls do.
constexpr uint64_t kCreationVersion = 2;

// The word kVerdict: 0 until the rank knows, then one of these; what a rank that gives up says of it stands above the lowest byte.
constexpr uint64_t kAgrees = 1, kGaveUp = 2;
enum class Reason : uint8_t { kNotZero = 1, kDiffers = 2, kTable = 3, kMissing = 4, kOther = 5 };
struct GivingUp {
  Reason reason = Reason::kNotZero;
  int32_t by = 0, blamed = 0;  // ranks; whoever passes it on keeps `by`
  int field = 0;               // kDiffers: in what

  uint64_t word() const {
    return kGaveUp | uint64_t{static_cast<uint8_t>(reason)} << 8 | static_cast<uint64_t>(by) << 16 | static_cast<uint64_t>(blamed) << 24 |
           static_cast<uint64_t>(field) << 32;
  }
  static GivingUp of(uint64_t word) {
    return {static_cast<Reason>(word >> 8 & 0xFF), static_cast<int32_t>(word >> 16 & 0xFF), static_cast<int32_t>(word >> 24 & 0xFF),
            static_cast<int>(word >> 32 & 0xFF)};
  }
};

// What went wrong, and what the others are told of it.
struct Failed {
  Error error;
  GivingUp word;
};

uint64_t text_word(std::string_view text) {
  uint64_t word = 0;
  std::memcpy(&word, text.data(), std::min(text.size(), sizeof(word)));
  return word;
}

std::string value_text(int field, uint64_t value) {
  if (field == kBackend) return value == static_cast<uint64_t>(WorldBackend::kCuda) ? "cuda" : "cpu";
  if (field != kVersion) return fmt::to_string(value);
  char text[sizeof(value) + 1] = {};
  std::memcpy(text, &value, sizeof(value));
  return text;
}

Words make_fingerprint(const Problem& problem, WorldBackend backend, const WorldRank& world) {
  Words words{};
  words[kPresent] = 1;
  words[kProtocol] = kProtocolVersion;
  words[kVersion] = text_word(world.library_version);
  words[kLaunch] = world.launch;
  words[kCreation] = kCreationVersion;
  words[kBackend] = static_cast<uint64_t>(backend);
  words[kRanks] = static_cast<uint64_t>(problem.ranks);
  words[kTopk] = static_cast<uint64_t>(problem.topk);
  words[kHidden] = static_cast<uint64_t>(problem.hidden);
  words[kCapacity] = static_cast<uint64_t>(problem.capacity);
  words[kIntermediate] = static_cast<uint64_t>(problem.intermediate);
  return words;
}

int64_t offset_of(const SymmetricLayout& layout, int32_t rank) {
  return layout.flags + static_cast<int64_t>(offsetof(SymmetricFlags, fingerprints)) + rank * static_cast<int64_t>(sizeof(Words));
}

// Flags and counters begin at zero. Peers may have told their fingerprints already; nobody has told this rank's.
Result<void> check_zero(const SymmetricMemory& memory, const SymmetricLayout& layout, int32_t self) {
  std::vector<uint64_t> words(1024);
  const int64_t end = layout.route_ids / 8;
  const int64_t told_from = offset_of(layout, 0) / 8, told_to = told_from + kMaxRanks * kFingerprintWords;
  const int64_t own_from = offset_of(layout, self) / 8, own_to = own_from + kFingerprintWords;
  for (int64_t begin = 0; begin < end; begin += static_cast<int64_t>(words.size())) {
    const std::span<uint64_t> piece(words.data(), static_cast<size_t>(min_of(static_cast<int64_t>(words.size()), end - begin)));
    if (auto read = memory.read_words(self, begin * 8, piece); !read) return read;
    for (size_t i = 0; i < piece.size(); ++i) {
      const int64_t at = begin + static_cast<int64_t>(i);
      if (piece[i] == 0 || (at >= told_from && at < told_to && (at < own_from || at >= own_to))) continue;
      return usage_error(
          fmt::format("options->peers[{}] is memory that is not zero (at byte {}); zero it before the addresses are handed out, and "
                      "again before each new workspace",
                      self, at * 8));
    }
  }
  return {};
}

// The payload first: whoever sees the first word sees all.
Result<void> tell_all(const SymmetricMemory& memory, const SymmetricLayout& layout, int32_t self, Words words) {
  const std::span<const uint64_t> all(words);
  for (int32_t rank = 0; rank < memory.num_ranks(); ++rank) {
    words[kOwner] = static_cast<uint64_t>(rank);
    if (auto told = memory.write_words(rank, offset_of(layout, self) + 8, all.subspan(1)); !told) return told;
    if (auto told = memory.write_words(rank, offset_of(layout, self), all.first(1)); !told) return told;
  }
  return {};
}

// In what the two differ, as a sentence's beginning and the first field of it.
std::string differences(const Words& own, int32_t self, const Words& theirs, int32_t rank, int& first) {
  std::string text;
  for (int field = kProtocol; field < kOwner; ++field) {
    if (own[field] == theirs[field]) continue;
    if (text.empty()) first = field;
    text += fmt::format("{}{} is {} on rank {} and {} on rank {}", text.empty() ? "" : ", ", kNames[field], value_text(field, own[field]),
                        self, value_text(field, theirs[field]), rank);
    if (field == kProtocol) break;  // the rest may mean something else there
  }
  return text;
}

std::optional<Failed> compare(const Words& own, int32_t self, const Words& theirs, int32_t rank) {
  int field = 0;
  if (const std::string text = differences(own, self, theirs, rank, field); !text.empty()) {
    return Failed{usage_error(text + "; all ranks of a world need the same library and the same workspace options"),
                  {Reason::kDiffers, self, rank, field}};
  }
  if (theirs[kOwner] == static_cast<uint64_t>(self)) return std::nullopt;
  return Failed{usage_error(fmt::format("peers[{}] of rank {} leads to the memory of rank {}; the tables of all ranks must name the same memories in "
                                        "the order of the ranks, and each rank a memory of its own",
                                        theirs[kOwner], rank, self)),
                {Reason::kTable, self, rank, 0}};
}

// Of a rank that gave up, as another one is told.
Error told_of(const GivingUp& what, int32_t self) {
  std::string why = "its memory was not zero";
  if (what.reason == Reason::kDiffers)
    why = fmt::format("{} is another on rank {} and on rank {}", what.field > 0 && what.field < kOwner ? kNames[what.field] : "something", what.by, what.blamed);
  if (what.reason == Reason::kTable) why = fmt::format("the peers of rank {} lead to other memory than its own tells", what.blamed);
  if (what.reason == Reason::kOther) why = "it could not make its own memory";
  if (what.reason == Reason::kMissing) why = fmt::format("rank {} did not come in time", what.blamed);
  return {what.reason == Reason::kMissing ? Status::kTimeout : Status::kUsage,
          fmt::format("rank {}: rank {} gave up making its workspace: {}; zero the memory and let every rank try again", self, what.by, why)};
}

// One rank's part in the exchange.
class Exchange {
 public:
  Exchange(const SymmetricMemory& memory, const SymmetricLayout& layout, const Words& own, const WorldRank& world)
      : memory_(memory), layout_(layout), own_(own), self_(world.rank), timeout_ms_(world.timeout_ms),
        end_(std::chrono::steady_clock::now() + std::chrono::milliseconds(world.timeout_ms)) {}

  void tell_failure() const {
    Words told{};
    if (!read_of(self_, told) || (told[kVerdict] & 0xFF) == kGaveUp) return;
    (void)tell_verdict(GivingUp{Reason::kOther, self_, self_, 0}.word());
  }
  // Whether all have told the same; then whether all have seen that.
  Result<void> run() {
    if (auto zero = check_zero(memory_, layout_, self_); !zero) return give_up({zero.error(), {Reason::kNotZero, self_, self_, 0}});
    if (auto told = tell_all(memory_, layout_, self_, own_); !told) return told;
    if (auto all = await_all(kPresent); !all) return all;
    if (auto told = tell_verdict(kAgrees); !told) return told;
    return await_all(kVerdict);
  }

 private:
  Result<void> tell_verdict(uint64_t verdict) const {
    for (int32_t rank = 0; rank < memory_.num_ranks(); ++rank) {
      if (auto told = memory_.write_words(rank, offset_of(layout_, self_) + kVerdict * 8, std::span(&verdict, 1)); !told) return told;
    }
    return {};
  }
  Error give_up(const Failed& failed) const {
    (void)tell_verdict(failed.word.word());  // memory that cannot be reached is told by the error already
    return failed.error;
  }

  // Waits for a word of every rank, kPresent or kVerdict, and looks at what comes with it.
  Result<void> await_all(Word word) {
    std::vector<bool> is_there(memory_.num_ranks());
    int32_t blamed = 0;
    for (;;) {
      // Late is who has not come when time was up before the look.
      const bool is_late = std::chrono::steady_clock::now() > end_;
      std::optional<GivingUp> given_up;
      for (int32_t rank = 0; rank < memory_.num_ranks(); ++rank) {
        Words theirs{};
        if (auto read = read_of(rank, theirs); !read) return read;
        if (word == kPresent && theirs[kPresent] != 0 && !is_there[rank]) {
          if (const auto failed = compare(own_, self_, theirs, rank)) return give_up(*failed);
        }
        if ((theirs[kVerdict] & 0xFF) == kGaveUp) given_up = GivingUp::of(theirs[kVerdict]);
        is_there[rank] = theirs[word] != 0;
      }
      // After the look at all of them: a difference that this rank can name itself comes first.
      if (given_up) return give_up({told_of(*given_up, self_), *given_up});
      const auto missing = std::ranges::find(is_there, false);
      if (missing == is_there.end()) return {};
      blamed = static_cast<int32_t>(missing - is_there.begin());
      if (is_late) break;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return give_up({{Status::kTimeout, fmt::format("rank {}: rank {} did not create its workspace within {} ms; every rank of the world creates one, with "
                                                   "the same memory",
                                                   self_, blamed, timeout_ms_)},
                    {Reason::kMissing, self_, blamed, 0}});
  }

  // A rank's words, the one that says they are there first.
  Result<void> read_of(int32_t rank, Words& theirs) const {
    const std::span<uint64_t> words(theirs);
    if (auto read = memory_.read_words(self_, offset_of(layout_, rank), words.first(1)); !read) return read;
    return memory_.read_words(self_, offset_of(layout_, rank) + 8, words.subspan(1));
  }

  const SymmetricMemory& memory_;
  const SymmetricLayout& layout_;
  const Words& own_;
  int32_t self_;
  uint32_t timeout_ms_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace

Result<void> exchange_fingerprints(const SymmetricMemory& memory, const Problem& problem, WorldBackend backend, const WorldRank& world) {
  const SymmetricLayout layout = symmetric_layout(problem);
  const Words own = make_fingerprint(problem, backend, world);
  return Exchange(memory, layout, own, world).run();
}

void tell_failure(const SymmetricMemory& memory, const Problem& problem, const WorldRank& world) {
  const SymmetricLayout layout = symmetric_layout(problem);
  const Words none{};
  Exchange(memory, layout, none, world).tell_failure();
}

}  // namespace monomoe
