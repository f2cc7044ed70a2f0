// One MoE layer's tensors sorted by what their names say, before anything about their contents is decided.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "weights/checkpoint.hpp"
#include "weights/format.hpp"
#include "weights/names.hpp"

namespace monomoe {

using ExpertTensors = std::array<MatrixTensors, kMatrixRoles>;  // by MatrixRole

struct LayerTensors {
  std::string prefix;               // "model.layers.3.mlp."
  bool hugging_face_names = false;  // gate_proj, up_proj, down_proj instead of w1, w3, w2
  std::string shared_module;        // "shared_experts" or "shared_expert"
  std::map<int, ExpertTensors> experts;
  std::unique_ptr<ExpertTensors> shared;
  LocatedTensor router_weight, router_bias, hash_table;
  std::vector<LocatedTensor> fused;
  std::vector<std::string> conflicts;  // sentences: two tensors for one place
  std::vector<std::string> refused;    // sentences: tensors that change the result and are not supported
  bool unsupported_shared = false;

  bool has_experts() const { return !experts.empty() || !fused.empty() || !refused.empty(); }  // refused: of experts, but unusable

  std::string matrix_name(const std::string& module, MatrixRole role) const;  // "model.layers.3.mlp.experts.5.gate_proj"
};

// Resolves formats and shapes, checks values, and lists every problem in one error.
Result<LayerWeights> load_layer_weights(const LayerTensors& tensors, LayerId layer, const ModelConfig& config,
                                        std::shared_ptr<const TensorSet> files, const LoadOptions& options);

}  // namespace monomoe
