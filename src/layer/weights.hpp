// Packed experts behind the ABI's handle, and the one way to make them: from source matrices and a placement.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "cpu/executor_weights.hpp"
#include "layer/context.hpp"
#include "monomoe/monomoe.h"
#include "plan/placement_table.hpp"
#include "plan/source_matrix.h"

struct monomoe_weights {
  const monomoe_context* context;
  monomoe::Problem problem;  // of the layer: topk and capacity are the workspace's
  monomoe::PlacementTable placement;
  float swiglu_limit;  // +inf for none
  std::optional<monomoe::cpu::CpuWeights> cpu;   // one of the two: the context's backend
  std::unique_ptr<monomoe::cuda::Weights> cuda;
};

namespace monomoe::layer {

struct LayerSource {
  int64_t hidden = 0, intermediate = 0;
  WeightFormat format = WeightFormat::kFp8;
  std::span<const SourceExpert> experts;  // of the whole layer; those that live on ranks elsewhere are not looked at
  float swiglu_limit = 0;   // 0 or +inf = none
  bool from_caller = true;  // false: from a checkpoint, whose values were checked where they were loaded
  uint64_t tag = 0;         // the layer's number among the ranks of a world
  std::span<const uint8_t* const> packed = {};  // instead of codes in `experts`: expert_layout bytes each, checked where they were loaded
};

Result<float> checked_limit(float swiglu_limit);  // +inf for none
// NULL: even. The table of a context with num_ranks ranks.
Result<PlacementTable> make_placement(const monomoe_placement* placement, int64_t experts, int64_t ranks);
// [experts] whether a rank of this process holds the expert.
std::vector<bool> held_experts(const monomoe_context& context, const PlacementTable& placement);
Result<std::unique_ptr<monomoe_weights>> pack_weights(const monomoe_context& context, const LayerSource& source, PlacementTable placement);

}  // namespace monomoe::layer
