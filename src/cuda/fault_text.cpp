// See fault_text.hpp.
#include "cuda/fault_text.hpp"

#include <fmt/format.h>

#include "comm/error_record.hpp"

namespace monomoe::cuda {
namespace {

FlagName flag_name(uint64_t flag) {
  switch (static_cast<WaitFlag>(flag)) {
    case WaitFlag::kDrained: return FlagName::kDrained;
    case WaitFlag::kRoutesReady: return FlagName::kRoutesReady;
    case WaitFlag::kBlockDone: return FlagName::kBlockDone;
    case WaitFlag::kArrivals: return FlagName::kArrivals;
    case WaitFlag::kLayer: return FlagName::kLayer;
    case WaitFlag::kArrived: break;
  }
  return FlagName::kArrived;
}

}  // namespace

Error fault_error(const DeviceError& record, const Problem& problem, uint32_t timeout_ms) {
  switch (static_cast<DeviceErrorCode>(record.code)) {
    case DeviceErrorCode::kBadExpertId:
      return usage_error(fmt::format("rank {}: expert id {} of token {}, slot {} is not below {}; use a negative id to drop a slot", record.rank,
                                     static_cast<int64_t>(record.seen), static_cast<int64_t>(record.item) / problem.topk,
                                     static_cast<int64_t>(record.item) % problem.topk, record.expected));
    case DeviceErrorCode::kTooManyTokens:
      return usage_error(fmt::format("rank {}: {} tokens exceed the capacity of {}", record.rank, record.seen, record.expected));
    case DeviceErrorCode::kSharedBase:
      return Error{Status::kInternal, "shared memory does not begin where this build of the kernel expects it; build the library with another nvcc"};
    default: break;
  }
  ErrorRecord common;
  common.rank = static_cast<int32_t>(record.rank);
  common.role = static_cast<TaskKind>(record.task);
  common.flag = flag_name(record.flag);
  // Which of the ranks that serve a token is late the waiting rank does not know.
  common.peer = common.flag == FlagName::kArrivals ? -1 : static_cast<int32_t>(record.peer);
  common.item = static_cast<int64_t>(record.item);
  common.expected = record.expected;
  common.seen = record.seen;
  common.timeout_ms = timeout_ms;
  const bool mismatch = static_cast<DeviceErrorCode>(record.code) == DeviceErrorCode::kLayerMismatch;
  return Error{mismatch ? Status::kUsage : Status::kTimeout, to_sentence(common)};
}

}  // namespace monomoe::cuda
