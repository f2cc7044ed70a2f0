#include "cpu/executor_weights.hpp"

#include <fmt/format.h>

#include <utility>

namespace monomoe::cpu {

CpuWeights::CpuWeights(const Problem& problem, PlacementTable placement, float swiglu_limit)
    : problem_(problem), layout_(expert_layout(problem)), placement_(std::move(placement)), swiglu_limit_(swiglu_limit) {}

Result<CpuWeights> CpuWeights::create(const Problem& problem, PlacementTable placement, float swiglu_limit) {
  if (placement.experts() != problem.experts || placement.ranks() != problem.ranks) {
    return usage_error(fmt::format("the placement is for {} experts on {} ranks, the layer has {} experts on {} ranks",
                                   placement.experts(), placement.ranks(), problem.experts, problem.ranks));
  }
  CpuWeights weights(problem, std::move(placement), swiglu_limit);
  const PlacementView view = weights.placement_.view();
  weights.serving_.reserve(problem.ranks * problem.experts);
  for (int32_t src = 0; src < problem.ranks; ++src) {
    for (int32_t expert = 0; expert < problem.experts; ++expert) weights.serving_.push_back(view.serving_copy(expert, src));
  }
  weights.experts_.reserve(problem.experts);
  for (int64_t expert = 0; expert < problem.experts; ++expert) {
    auto region = PageRegion::create(weights.layout_.bytes);
    if (!region) return region.error();
    weights.experts_.push_back(region.take());
  }
  return weights;
}

}  // namespace monomoe::cpu
