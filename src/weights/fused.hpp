// Tensors that hold gate and up, or all experts, in one: taken apart where the model type says what is where.
#pragma once

#include <vector>

#include "weights/config.hpp"
#include "weights/layer_tensors.hpp"

namespace monomoe {

struct FusedTensor {
  MoeTensorName name;
  LocatedTensor tensor;
};

// Adds the parts to layer.experts; what cannot be split goes to layer.fused with the reason.
//   experts.gate_up_proj [E, 2 I, H], experts.down_proj [E, H, I]      of all experts, rows of gate before rows of up
//   experts.E.gate_up_proj.weight [2 I, H]                             of one expert
// Scales lie beside them with the same leading dimensions: a row of scales for each row (FP4) or 128 rows (FP8, whose I must be a
// multiple of 128), global scales as [E] or [E, 2].
void split_fused(const std::vector<FusedTensor>& tensors, const ModelConfig& config, LayerTensors& layer);

}  // namespace monomoe
