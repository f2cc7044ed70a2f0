#include "cpu/executor_weights.hpp"

#include <fmt/format.h>

#include <utility>

#include "plan/layer_tag.hpp"

namespace monomoe::cpu {

CpuWeights::CpuWeights(const Problem& problem, PlacementTable placement, float swiglu_limit, uint64_t tag)
    : problem_(problem), layout_(expert_layout(problem)), placement_(std::move(placement)), swiglu_limit_(swiglu_limit), tag_(tag) {}

Result<CpuWeights> CpuWeights::create(const Problem& problem, PlacementTable placement, float swiglu_limit) {
  return make(problem, std::move(placement), swiglu_limit, -1, unique_layer_tag());
}

Result<CpuWeights> CpuWeights::create_for_rank(const Problem& problem, PlacementTable placement, float swiglu_limit, int32_t rank, uint64_t tag) {
  return make(problem, std::move(placement), swiglu_limit, rank, tag);
}

Result<CpuWeights> CpuWeights::make(const Problem& problem, PlacementTable placement, float swiglu_limit, int32_t rank, uint64_t tag) {
  if (placement.experts() != problem.experts || placement.ranks() != problem.ranks) {
    return usage_error(fmt::format("the placement is for {} experts on {} ranks, the layer has {} experts on {} ranks",
                                   placement.experts(), placement.ranks(), problem.experts, problem.ranks));
  }
  CpuWeights weights(problem, std::move(placement), swiglu_limit, tag);
  const PlacementView view = weights.placement_.view();
  weights.serving_.reserve(problem.ranks * problem.experts);
  for (int32_t src = 0; src < problem.ranks; ++src) {
    for (int32_t expert = 0; expert < problem.experts; ++expert) weights.serving_.push_back(view.serving_copy(expert, src));
  }
  weights.begin_.assign(problem.experts, -1);
  int64_t bytes = 0;
  for (int32_t holder = 0; holder < problem.ranks; ++holder) {
    if (rank >= 0 && holder != rank) continue;
    for (int32_t slot = view.slot_begin[holder]; slot < view.slot_begin[holder + 1]; ++slot) {
      int64_t& begin = weights.begin_[view.slot_expert[slot]];
      if (begin >= 0) continue;
      begin = bytes;
      bytes += weights.layout_.bytes;
    }
  }
  auto memory = PageRegion::create(bytes);
  if (!memory) return memory.error();
  weights.memory_.emplace(memory.take());
  return weights;
}

}  // namespace monomoe::cpu
