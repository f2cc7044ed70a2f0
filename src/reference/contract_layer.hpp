// The contract (docs/numerics.md) as the obvious scalar code: token by token, slot by slot, no tiles, no ranks, no packed weights.
// It gives the exact bits every backend must give; it is slow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "reference/layer_input.hpp"

namespace monomoe {

// Everything in logical order; route = token * topk + slot; a dropped slot's entries are zero.
struct ContractStages {
  StagedTokens tokens;                  // N1
  std::vector<uint8_t> mid_codes;       // N4: e4m3 [routes, intermediate rounded up to 128]
  std::vector<float> mid_scales;        // N6: [routes, blocks of 128], the route weight inside
  std::vector<uint16_t> contributions;  // N7: bf16 [routes, hidden]
};

struct ContractResult {
  std::vector<uint16_t> y;  // bf16 [tokens, hidden]
  ContractStages stages;
};

// All experts in one of the packed formats (fp8, nvfp4, mxfp4).
Result<ContractResult> contract_layer(const LayerInput& input, std::span<const SourceExpert> experts);

}  // namespace monomoe
