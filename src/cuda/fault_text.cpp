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

// What a rank elsewhere left in this one's memory: less than its own record, which its own process tells.
Error peer_error(const DeviceError& record) {
  switch (static_cast<DeviceErrorCode>(record.item)) {
    case DeviceErrorCode::kBadExpertId: return usage_error(fmt::format("rank {} met an expert id that does not exist", record.rank));
    case DeviceErrorCode::kTooManyTokens: return usage_error(fmt::format("rank {} met a number of tokens that cannot be", record.rank));
    case DeviceErrorCode::kLayerMismatch:
      return usage_error(fmt::format("rank {}: rank {} uses other weights in this call; all ranks must make the same calls in the same order",
                                     record.rank, record.peer));
    default: break;
  }
  return Error{Status::kTimeout, fmt::format("rank {} gave up waiting for rank {}, and the call ended on all ranks", record.rank, record.peer)};
}

}  // namespace

Error fault_error(const DeviceError& record, const Problem& problem, uint32_t timeout_ms) {
  switch (static_cast<DeviceErrorCode>(record.code)) {
    case DeviceErrorCode::kBadExpertId:
      return usage_error(fmt::format("rank {}: expert id {} of token {}, slot {} is not below {}; use a negative id to drop a slot", record.rank,
                                     static_cast<int64_t>(record.seen), static_cast<int64_t>(record.item) / problem.topk,
                                     static_cast<int64_t>(record.item) % problem.topk, record.expected));
    case DeviceErrorCode::kTooManyTokens:
      return usage_error(fmt::format("rank {}: num_tokens_device holds {}, wanted 0..{}, which is num_tokens", record.rank,
                                     static_cast<int64_t>(record.seen), record.expected));
    case DeviceErrorCode::kPeerAborted: return peer_error(record);
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
