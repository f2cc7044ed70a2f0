// One expert of the float64 layer: both products and their bounds, for the routes that chose it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/float64_layer.hpp"

namespace monomoe {

// The tokens in step order, shared by all experts.
struct StepTokens {
  std::vector<double> values;  // of the codes, [tokens, hidden]
  std::vector<uint8_t> keys;   // error_bounds.hpp
};
StepTokens step_tokens(const StagedTokens& tokens, int64_t hidden);

// Writes the routes' rows of result.intermediate and result.contributions.
void float64_expert(const LayerInput& input, const StepTokens& tokens, const SourceExpert& expert, std::span<const int64_t> routes,
                    Float64Result& result);

}  // namespace monomoe
