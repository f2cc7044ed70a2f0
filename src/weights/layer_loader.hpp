// A layer being resolved: the steps, each adding the problems it finds. Tensors in, LayerWeights out (layer_loader.cpp), with the router
// (layer_loader_router.cpp) and packed experts (layer_loader_packed.cpp) in files of their own.
#pragma once

#include <memory>
#include <string>

#include "weights/layer_tensors.hpp"
#include "weights/text.hpp"

namespace monomoe {

inline constexpr MatrixRole kRoles[kMatrixRoles] = {MatrixRole::kGate, MatrixRole::kUp, MatrixRole::kDown};

inline SourceMatrix& matrix_of(SourceExpert& expert, MatrixRole role) {
  return role == MatrixRole::kGate ? expert.gate : role == MatrixRole::kUp ? expert.up : expert.down;
}
inline MatrixSource& source_of(ExpertSource& expert, MatrixRole role) {
  return role == MatrixRole::kGate ? expert.gate : role == MatrixRole::kUp ? expert.up : expert.down;
}

// `tensor "x.w1.weight" (model.safetensors)`
std::string tensor_word(const LocatedTensor& tensor);

// The sizes all experts of a layer must have, and who says so.
struct Geometry {
  int64_t hidden = 0, intermediate = 0;
  std::string hidden_from, intermediate_from;
};

class LayerLoader {
 public:
  LayerLoader(const LayerTensors& tensors, LayerId layer, const ModelConfig& config, const PackedLayerRecord* packed,
              const LoadOptions& options)
      : tensors_(tensors), layer_(layer), config_(config), record_(packed), options_(options), problems_(options.max_problems) {}

  Result<LayerWeights> load(std::shared_ptr<const TensorSet> files);

 private:
  void refuse_unsupported();
  void load_stored();  // experts as matrices
  void load_packed();  // experts in the kernel's layout
  const uint8_t* check_packed(const LocatedTensor& tensor, int64_t intermediate, WeightFormat format);
  void verify_checksums();
  std::vector<LocatedTensor> tensors_beside_experts() const;
  void check_none_missing();
  FormatHints hints_of(const std::string& module) const;
  bool decide_expert(const ExpertTensors& tensors, const std::string& module, const FormatHints& hints, SourceExpert& expert,
                     ExpertSource& source);
  bool rewrite_scales(SourceMatrix& matrix, const LocatedTensor& scale);
  void decide_experts();
  void check_one_format();
  void settle_geometry();
  void check_shape(const SourceMatrix& matrix, const MatrixSource& source, MatrixRole role, const Geometry& wanted);
  void load_shared();
  void load_router();
  void note_multipliers();
  void note_unequal_globals();
  void scan();
  void scan_router();
  void scan_table(const RouterTensors& router);
  void note_shared_count();

  const LayerTensors& tensors_;
  LayerId layer_;
  const ModelConfig& config_;
  const PackedLayerRecord* record_;  // of a packed checkpoint
  const LoadOptions& options_;
  LayerWeights out_;
  int64_t expert_count_ = 0;  // as it should be; out_.experts holds those without a problem
  bool router_readable_ = false;
  Geometry geometry_;
  ProblemList problems_;
};

}  // namespace monomoe
