// What the backend left in its workspace after a call, put together over all ranks in the reference's order: tokens of rank 0 first,
// route = token * topk + slot, channels in logical order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/executor_weights.hpp"
#include "cpu/executor_workspace.hpp"
#include "reference/layer_input.hpp"

namespace monomoe::layer {

struct BackendStages {
  StagedTokens tokens;
  std::vector<uint8_t> token_staged;    // 0: no live slot, so the row was never quantised
  std::vector<uint8_t> mid_codes;       // [routes, intermediate rounded up to 128]; zero for dropped slots, as the next two
  std::vector<float> mid_scales;        // [routes, blocks]
  std::vector<uint16_t> contributions;  // [routes, hidden]
};

// rows: tokens of each rank in the last call.
BackendStages read_stages(const cpu::CpuWeights& weights, const cpu::CpuWorkspace& workspace, std::span<const int64_t> rows);

}  // namespace monomoe::layer
