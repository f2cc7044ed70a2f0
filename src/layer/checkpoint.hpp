// A checkpoint behind the ABI's handle, and a layer of it loaded and checked.
#pragma once

#include <memory>
#include <optional>

#include "base/result.hpp"
#include "layer/context.hpp"
#include "layer/weights.hpp"
#include "monomoe/checkpoint.h"
#include "weights/checkpoint.hpp"

struct monomoe_checkpoint {
  monomoe::Checkpoint files;
};

namespace monomoe::layer {

// swiglu_limit < 0: config.json's, none if it says nothing. NaN is refused.
Result<float> limit_or_config(float swiglu_limit, const ModelConfig& config);

// The routed experts of a loaded layer, packed for the context.
Result<std::unique_ptr<monomoe_weights>> pack_routed(const monomoe_context& context, const LayerWeights& layer, const ModelConfig& config,
                                                     const monomoe_placement* placement, float swiglu_limit);

}  // namespace monomoe::layer
