// The checks of one rank's call before any work. Inside cpu/ only.
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

// Nothing if the call is legal. Looks at every id.
std::optional<Refusal> check_call(const CpuWeights& weights, const CpuWorkspace& workspace, int32_t rank, const RankCall& call,
                                  const RunOptions& options);

}  // namespace monomoe::cpu
