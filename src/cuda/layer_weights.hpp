// The packed experts of a layer on the GPUs of this process's ranks.
#pragma once

#include <vector>

#include "cuda/backend.hpp"
#include "cuda/devices.hpp"
#include "cuda/rank_memory.hpp"

namespace monomoe::cuda {

class LayerWeights final : public Weights {
 public:
  static Result<std::unique_ptr<Weights>> make(const Topology& topology, const Problem& problem, const PlacementTable& placement,
                                               float swiglu_limit, uint64_t tag);
  Result<void> upload(int32_t expert, const uint8_t* packed) override;
  uint8_t* slots(int32_t rank) const override { return ranks_[rank].slot(0); }
  int gpu(int32_t rank) const override { return topology_.gpu[rank]; }

  const Problem& problem() const { return problem_; }
  float swiglu_limit() const { return swiglu_limit_; }
  const RankWeights& rank(int32_t rank) const { return ranks_[rank]; }
  // Ranks that use layers of different tags in one call notice (plan/layer_tag.hpp).
  uint64_t tag() const { return tag_; }

 private:
  LayerWeights(const Topology& topology, const Problem& problem, const PlacementTable& placement, float swiglu_limit, uint64_t tag)
      : topology_(topology), problem_(problem), placement_(placement), swiglu_limit_(swiglu_limit), tag_(tag) {}

  const Topology& topology_;
  Problem problem_;
  PlacementTable placement_;
  float swiglu_limit_;
  uint64_t tag_;
  std::vector<RankWeights> ranks_;  // [ranks]; empty for ranks elsewhere
};

}  // namespace monomoe::cuda
