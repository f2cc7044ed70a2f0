// The layer in float64, and for every element a bound on what a correct backend may differ by (docs/bounds.md derives it).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "reference/layer_input.hpp"

namespace monomoe {

// A stage's values and how far a backend may be from them. NaN in `values`: the backend must have NaN there.
struct BoundedStage {
  std::vector<double> values, bounds;
};

// route = token * topk + slot; a dropped slot's entries are zero with bound zero.
struct Float64Result {
  StagedTokens tokens;         // exact: a backend has these very codes and scales
  BoundedStage intermediate;   // [routes, intermediate]: SwiGLU times route weight, not quantised; a backend's code * stored scale
  BoundedStage contributions;  // [routes, hidden]
  BoundedStage output;         // [tokens, hidden]
};

// The rounded weights (e4m3 codes * scales) applied to the contract's quantised tokens. Threads share the experts out.
Result<Float64Result> float64_layer(const LayerInput& input, std::span<const SourceExpert> experts, int threads);

// For information, without bounds: the checkpoint's exact weights (BF16 too) and the tokens as given, quantised nowhere. Values
// [tokens, hidden].
Result<std::vector<double>> exact_layer(const LayerInput& input, std::span<const SourceExpert> experts, int threads);

}  // namespace monomoe
