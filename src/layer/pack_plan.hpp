// Which tensor goes into which shard of a packed or converted checkpoint: decided from names and shapes alone, the same for the same
// arguments, so that a killed run can be taken up again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "layer/pack_request.hpp"
#include "plan/problem.h"
#include "weights/checkpoint.hpp"
#include "weights/safetensors_writer.hpp"

namespace monomoe::layer {

// A tensor that stays as it is, or keeps some of its rows.
struct CopiedTensor {
  std::string name;  // in the output
  LocatedTensor source;
  std::vector<int64_t> rows;  // empty = all
  TensorSpec spec() const;
};

struct ShardPlan {
  std::string name;  // "model-00003-of-00046.safetensors"
  int layer = -1;    // into PackPlan::layers; -1 = tensors outside MoE layers
  std::vector<CopiedTensor> copies;
  bool packs_shared = false;
  std::vector<int64_t> experts;  // numbers in the source
  int64_t first_expert = 0;      // number of the first of them in the output
  std::vector<TensorSpec> specs;
  uint64_t bytes = 0;  // of the tensors
};

struct PackPlan {
  std::vector<LayerWeights> layers;  // structure only: not scanned
  std::vector<ShardPlan> shards;
  std::vector<std::string> notes;
  uint64_t bytes = 0;
};

// An error names what cannot be packed: a layer that is not there, a router that chooses more experts than are kept, a packed source, ...
Result<PackPlan> make_pack_plan(const Checkpoint& checkpoint, const PackRequest& request);

// The output's format of a layer: the target, or for packed the layer's own.
WeightFormat output_format(const LayerWeights& layer, const PackRequest& request);
// Of a layer's routed experts, or of its shared expert.
Problem packed_problem(const LayerWeights& layer, bool shared);

}  // namespace monomoe::layer
