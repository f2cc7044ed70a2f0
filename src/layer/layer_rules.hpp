// The kernel's rules held against a loaded checkpoint layer: what makes a sound file unusable, each with the tensor that shows it.
#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "weights/checkpoint.hpp"

namespace monomoe::layer {

// A sentence for each broken rule of the routed experts; empty if the layer can run.
std::vector<std::string> broken_rules(const LayerWeights& layer);

// Why the shared expert cannot be added; empty if it can, or if there is none.
std::string shared_expert_refusal(const LayerWeights& layer);

// The same as one error that names directory and layer.
Result<void> check_rules(const LayerWeights& layer);

}  // namespace monomoe::layer
