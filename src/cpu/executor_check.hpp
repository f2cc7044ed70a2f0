// The checks of one rank's call before any work; the first form serves every backend.
#pragma once

#include <optional>

#include "base/result.hpp"
#include "cpu/executor_call.hpp"
#include "cpu/executor_weights.hpp"
#include "cpu/executor_workspace.hpp"
#include "plan/flags.h"

namespace monomoe::cpu {

// Why this rank refuses: for itself the sentence, for the others reason and value.
struct Refusal {
  Error error;
  RejectReason reason = RejectReason::kBadArgument;
  uint64_t value = 0;
};

// A layer and a workspace in numbers: all that a call is checked against.
struct CallRoom {
  const Problem& layer;
  int64_t layer_slots;  // the most experts one rank holds
  const Problem& workspace;
  int64_t workspace_slots;
};
// Every check but that of kernels. look_at_ids: false where the ids are not in this machine's memory.
std::optional<Refusal> check_call(const CallRoom& room, int32_t rank, const RankCall& call, bool look_at_ids);

// Nothing if the call is legal. Looks at every id.
std::optional<Refusal> check_call(const CpuWeights& weights, const CpuWorkspace& workspace, int32_t rank, const RankCall& call,
                                  const RunOptions& options);

}  // namespace monomoe::cpu
