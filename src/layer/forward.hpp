// One call of the layer from the ABI's token structs.
#pragma once

#include "base/result.hpp"
#include "cpu/executor_call.hpp"
#include "layer/weights.hpp"
#include "layer/workspace.hpp"
#include "monomoe/monomoe.h"

namespace monomoe::layer {

Result<cpu::RankCall> call_from_abi(const monomoe_tokens* tokens, int32_t rank);
cpu::RunOptions run_options(const monomoe_context& context);
// All ranks; times may be NULL.
Result<void> forward_all(const monomoe_weights& weights, monomoe_workspace& workspace, const monomoe_tokens* tokens,
                         cpu::StageTimes* times);

}  // namespace monomoe::layer
