// One MoE layer's tensors sorted by what their names say, before anything about their contents is decided.
#pragma once

#include <array>
#include <deque>
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
  std::map<int, LocatedTensor> packed;  // experts in the kernel's layout, instead of `experts`
  LocatedTensor packed_shared;
  LocatedTensor router_weight, router_bias, hash_table;
  std::vector<LocatedTensor> fused;    // not split: of unknown order or shape
  std::vector<std::string> fused_why;  // for each of `fused`: the sentence's end
  std::deque<TensorEntry> split;       // the parts of fused tensors, pointing into the same bytes; their addresses stay
  std::vector<std::string> conflicts;  // sentences: two tensors for one place
  std::vector<std::string> refused;    // sentences: tensors that change the result and are not supported
  bool unsupported_shared = false;

  // refused: of experts, but unusable
  bool has_experts() const { return !experts.empty() || !packed.empty() || !fused.empty() || !refused.empty(); }

  std::string matrix_name(const std::string& module, MatrixRole role) const;  // "model.layers.3.mlp.experts.5.gate_proj"
};

// Resolves formats and shapes, checks values, and lists every problem in one error.
// `packed` is what the manifest says of this layer, or nullptr.
Result<LayerWeights> load_layer_weights(std::shared_ptr<const LayerTensors> tensors, LayerId layer, const ModelConfig& config, const PackedLayerRecord* packed,
                                        std::shared_ptr<const TensorSet> files, const LoadOptions& options);

}  // namespace monomoe
