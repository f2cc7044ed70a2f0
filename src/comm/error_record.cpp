#include "comm/error_record.hpp"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "comm/flags.hpp"

namespace monomoe {
namespace {

constexpr uint64_t kBeingWritten = 1, kWritten = 2;
constexpr std::chrono::seconds kWritingTakesAtMost{2};  // seven words: only a writer that is gone needs longer

uint64_t join(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }
uint32_t high_of(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint32_t low_of(uint64_t word) { return static_cast<uint32_t>(word); }

const char* role_text(TaskKind role) {
  switch (role) {
    case TaskKind::kDispatch: return "dispatch";
    case TaskKind::kRoutes: return "route lists";
    case TaskKind::kArrange: return "arranging rows";
    case TaskKind::kGemm1: return "GEMM1";
    case TaskKind::kGemm2: return "GEMM2";
    case TaskKind::kCombine: return "combine";
    case TaskKind::kNone: break;
  }
  return "claiming";
}

const char* flag_text(FlagName flag) {
  switch (flag) {
    case FlagName::kArrived: return "arrived";
    case FlagName::kDrained: return "drained";
    case FlagName::kArrivals: return "arrivals";
    case FlagName::kRoutesReady: return "routes_ready";
    case FlagName::kBlockDone: return "block_done";
    case FlagName::kOutcome: return "outcome";
    case FlagName::kLayer: return "layer";
    case FlagName::kUnknown: break;
  }
  return "unknown";
}

std::string what_failed(const ErrorRecord& record) {
  const std::string who = record.peer >= 0 ? fmt::format("rank {}", record.peer) : "one of the ranks that serve it";
  switch (record.flag) {
    case FlagName::kArrived: return who + " did not arrive";
    case FlagName::kDrained: return who + " did not finish reading the rows of an earlier call";
    case FlagName::kArrivals: return fmt::format("{} did not send its contributions to token {}", who, record.item);
    default: return who + " did not finish";
  }
}

}  // namespace

std::string to_sentence(const ErrorRecord& record) {
  if (record.flag == FlagName::kLayer) {
    return fmt::format("rank {}, {}: rank {} uses other weights in this call; all ranks must make the same calls in the same order",
                       record.rank, role_text(record.role), record.peer);
  }
  if (record.flag == FlagName::kUnknown) return "a rank gave up and its process ended before it had said why";
  const char* unit = record.flag == FlagName::kArrivals ? "pieces" : "epoch";
  return fmt::format("rank {}, {}: {} within {} ms (flag {}, expected {} {}, seen {})", record.rank, role_text(record.role),
                     what_failed(record), record.timeout_ms, flag_text(record.flag), unit, record.expected, record.seen);
}

std::string reject_sentence(RejectReason reason, uint64_t value, int64_t capacity, int64_t experts) {
  switch (reason) {
    case RejectReason::kTooManyTokens: return fmt::format("{} tokens exceed the capacity of {}", value, capacity);
    case RejectReason::kBadExpertId: return fmt::format("expert id {} is not below {}", value, experts);
    case RejectReason::kNoMemory: return "it could not get memory for its workers";
    default: return "one of its arguments is wrong";
  }
}

void write_record(SymmetricFlags& flags, const ErrorRecord& record) {
  uint64_t* words = flags.abort_record;
  if (!win(words[0], kBeingWritten)) return;
  words[1] = join(static_cast<uint32_t>(record.code), static_cast<uint32_t>(record.rank));
  words[2] = join(static_cast<uint32_t>(record.role), static_cast<uint32_t>(record.flag));
  words[3] = join(static_cast<uint32_t>(record.peer), record.timeout_ms);
  words[4] = record.expected;
  words[5] = record.seen;
  words[6] = static_cast<uint64_t>(record.item);
  publish(words[0], kWritten);
}

bool has_record(SymmetricFlags& flags) { return look(flags.abort_record[0]) != 0; }

ErrorRecord read_record(SymmetricFlags& flags) {
  uint64_t* words = flags.abort_record;
  ErrorRecord record;
  const auto end = std::chrono::steady_clock::now() + kWritingTakesAtMost;
  while (look(words[0]) != kWritten) {
    if (std::chrono::steady_clock::now() > end) {
      record.flag = FlagName::kUnknown;
      return record;
    }
    std::this_thread::yield();
  }
  record.code = static_cast<Status>(high_of(words[1]));
  record.rank = static_cast<int32_t>(low_of(words[1]));
  record.role = static_cast<TaskKind>(high_of(words[2]));
  record.flag = static_cast<FlagName>(low_of(words[2]));
  record.peer = static_cast<int32_t>(high_of(words[3]));
  record.timeout_ms = low_of(words[3]);
  record.expected = words[4];
  record.seen = words[5];
  record.item = static_cast<int64_t>(words[6]);
  return record;
}

}  // namespace monomoe
