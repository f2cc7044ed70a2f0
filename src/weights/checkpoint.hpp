// A checkpoint directory as MoE layers: names, formats and shapes resolved, values checked, pointers into the mapped files.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "plan/source_matrix.h"
#include "weights/config.hpp"
#include "weights/names.hpp"
#include "weights/packed_manifest.hpp"
#include "weights/router.hpp"
#include "weights/tensor_set.hpp"

namespace monomoe {

// The tensors behind a SourceMatrix, for messages.
struct MatrixSource {
  LocatedTensor weight, scale, global_scale;
};
struct ExpertSource {
  MatrixSource gate, up, down;
};

struct LayerTensors;  // a layer's tensors by name (layer_tensors.hpp)

struct LayerWeights {
  LayerId layer;
  std::string prefix;               // "model.layers.3.mlp."
  bool hugging_face_names = false;  // gate_proj, up_proj, down_proj instead of w1, w3, w2
  int64_t hidden = 0, intermediate = 0;
  WeightFormat format = WeightFormat::kBf16;  // of all routed experts
  // Of a packed checkpoint: each expert in the kernel's layout, expert_layout bytes. Then `experts` and `shared` have sizes and formats
  // but no codes, and of their sources only gate.weight is there, the packed tensor.
  std::vector<const uint8_t*> packed;
  const uint8_t* packed_shared = nullptr;
  std::vector<SourceExpert> experts;
  std::vector<ExpertSource> expert_sources;  // same order
  std::optional<SourceExpert> shared;        // its intermediate size may differ: shared->gate.rows
  ExpertSource shared_source;
  WeightFormat shared_format = WeightFormat::kBf16;
  std::optional<RouterTensors> router;     // absent in a checkpoint of experts alone
  std::vector<std::string> notes;          // legal but worth a line (config.json states another global format, unknown tensors, ...)
  std::shared_ptr<const TensorSet> files;  // keeps the maps alive
  std::shared_ptr<const LayerTensors> names;  // and the parts of fused tensors
  std::vector<std::shared_ptr<const std::vector<uint8_t>>> owned;  // scales that had to be written anew
};

struct LayerSummary {
  LayerId layer;
  int64_t experts = 0;  // highest expert number + 1
  bool shared = false, router = false, hash = false;
};

struct LoadOptions {
  bool scan_values = true;  // refuse NaN codes, NaN, infinite or negative scales (scan.hpp)
  bool read_values = true;  // false: no tensor's bytes are looked at (then nothing is scanned and global scales are 1): for reports alone
  int threads = 1;
  const std::vector<bool>* scanned_experts = nullptr;  // null: all; else only the values of experts that are true here are read
  size_t max_problems = 20;  // sentences in the error; the rest is counted
  bool release_pages = false;  // give back the memory of each matrix when it has been scanned: for reading layer after layer
};

class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::string& directory, const OpenOptions& options = {});

  // Of an opening that kept going: problems of files and settings, and whether the layer can be judged in spite of them.
  const ProblemList& problems() const { return problems_; }
  bool can_judge(LayerId layer) const;
  const ModelConfig& config() const { return config_; }
  const TensorSet& tensors() const { return *tensors_; }
  bool is_packed() const { return !packed_.file.empty(); }
  std::vector<LayerSummary> layers() const;  // MoE layers in order, then the mtp blocks
  // A sentence for each layer with a router or a shared expert whose experts are all missing.
  std::vector<std::string> layers_without_experts() const;
  // Tensors that no layer uses: under an expert's prefix with an unknown name, duplicates beside an index, ...
  std::vector<UnusedTensor> unused() const;

  Result<LayerWeights> load_layer(int layer, const LoadOptions& options = {}) const { return load_layer(LayerId{false, layer}, options); }
  Result<LayerWeights> load_layer(LayerId layer, const LoadOptions& options = {}) const;
  // The settings with which this layer's router decides; an error names what config.json does not say.
  Result<RouterConfig> router_config(const LayerWeights& layer) const;

 private:
  explicit Checkpoint(size_t max_problems) : problems_(max_problems) {}
  Result<void> sort_names();

  std::shared_ptr<const TensorSet> tensors_;
  ModelConfig config_;
  PackedManifest packed_;
  std::map<LayerId, std::shared_ptr<LayerTensors>> layers_;
  std::vector<UnusedTensor> unknown_;  // under an expert's prefix, but of no known name
  ProblemList problems_;
  bool settings_sound_ = true;    // config.json and the manifest
  std::set<LayerId> incomplete_;  // the index places tensors of theirs where they are not
};

}  // namespace monomoe
