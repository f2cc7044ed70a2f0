// See fingerprint.hpp. Only the host takes part; a GPU's memory is reached through SymmetricMemory.
#include "comm/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "plan/flags.h"
#include "plan/memory_layout.h"

namespace monomoe {
namespace {

using Words = std::array<uint64_t, kFingerprintWords>;

// Word 0 says that the others are there. kOwner is whose memory the writer takes this one for; it alone differs between copies.
enum Word { kPresent, kProtocol, kVersion, kBackend, kRanks, kTopk, kHidden, kCapacity, kIntermediate, kLaunch, kOwner };
constexpr const char* kNames[] = {"",     "protocol version", "library version", "backend",         "world_ranks",
                                  "topk", "hidden",           "capacity",        "max_intermediate", "launch"};

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

std::string differences(const Words& own, int32_t self, const Words& theirs, int32_t rank) {
  std::string text;
  for (int field = kProtocol; field < kOwner; ++field) {
    if (own[field] == theirs[field]) continue;
    text += fmt::format("{}{} is {} on rank {} and {} on rank {}", text.empty() ? "" : ", ", kNames[field], value_text(field, own[field]),
                        self, value_text(field, theirs[field]), rank);
    if (field == kProtocol) break;  // the rest may mean something else there
  }
  return text;
}

Result<void> compare(const Words& own, int32_t self, const Words& theirs, int32_t rank) {
  if (const std::string text = differences(own, self, theirs, rank); !text.empty()) {
    return usage_error(text + "; all ranks of a world need the same library and the same workspace options");
  }
  if (theirs[kOwner] == static_cast<uint64_t>(self)) return {};
  return usage_error(
      fmt::format("peers[{}] of rank {} leads to the memory of rank {}; the tables of all ranks must name the same memories in "
                  "the order of the ranks",
                  theirs[kOwner], rank, self));
}

// Whether the rank has told; an error if it differs.
Result<bool> look_at(const SymmetricMemory& memory, const SymmetricLayout& layout, const Words& own, int32_t self, int32_t rank) {
  Words theirs{};
  const std::span<uint64_t> words(theirs);
  if (auto read = memory.read_words(self, offset_of(layout, rank), words.first(1)); !read) return read.error();
  if (theirs[kPresent] == 0) return false;
  if (auto read = memory.read_words(self, offset_of(layout, rank) + 8, words.subspan(1)); !read) return read.error();
  if (auto equal = compare(own, self, theirs, rank); !equal) return equal.error();
  return true;
}

}  // namespace

Result<void> exchange_fingerprints(const SymmetricMemory& memory, const Problem& problem, WorldBackend backend, const WorldRank& world) {
  using Clock = std::chrono::steady_clock;
  const SymmetricLayout layout = symmetric_layout(problem);
  const int32_t self = world.rank;
  const Words own = make_fingerprint(problem, backend, world);
  if (auto zero = check_zero(memory, layout, self); !zero) return zero;
  if (auto told = tell_all(memory, layout, self, own); !told) return told;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(world.timeout_ms);
  std::vector<int32_t> missing(memory.num_ranks());
  std::iota(missing.begin(), missing.end(), 0);
  for (;;) {
    std::vector<int32_t> still;
    for (const int32_t rank : missing) {
      auto agrees = look_at(memory, layout, own, self, rank);
      if (!agrees) return agrees.error();
      if (!agrees.value()) still.push_back(rank);
    }
    missing = std::move(still);
    if (missing.empty()) return {};
    if (Clock::now() > end) break;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return Error{Status::kTimeout,
               fmt::format("rank {}: rank {} did not create its workspace within {} ms; every rank of the world creates one, with "
                           "the same memory",
                           self, missing.front(), world.timeout_ms)};
}

}  // namespace monomoe
