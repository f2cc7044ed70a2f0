// See layer_weights.hpp.
#include "cuda/layer_weights.hpp"

#include <fmt/format.h>

namespace monomoe::cuda {
namespace {

// The counters of a rank's route lists share 16 KiB of a thread block.
constexpr int32_t kMaxSlotsOfRank = 1024;

}  // namespace

Result<std::unique_ptr<Weights>> LayerWeights::make(const Topology& topology, const Problem& problem, const PlacementTable& placement,
                                                    float swiglu_limit, uint64_t tag) {
  if (placement.experts() != problem.experts || placement.ranks() != problem.ranks) {
    return usage_error(fmt::format("the placement is for {} experts on {} ranks, the layer has {} experts on {} ranks", placement.experts(),
                                   placement.ranks(), problem.experts, problem.ranks));
  }
  if (placement.max_slots() > kMaxSlotsOfRank) {
    return unavailable(fmt::format("the placement puts {} experts on one rank, backend cuda takes at most {}; use more ranks or fewer copies",
                                   placement.max_slots(), kMaxSlotsOfRank));
  }
  std::unique_ptr<LayerWeights> weights(new LayerWeights(topology, problem, placement, swiglu_limit, tag));
  weights->ranks_.resize(problem.ranks);
  for (int32_t rank = topology.first_rank; rank < topology.end_rank; ++rank) {
    const CurrentGpu current(topology.gpu[rank]);
    auto made = RankWeights::make(problem, placement, rank);
    if (!made) return Error{made.error().status, fmt::format("rank {} on GPU {}: {}", rank, topology.gpu[rank], made.error().message)};
    weights->ranks_[rank] = made.take();
  }
  return std::unique_ptr<Weights>(std::move(weights));
}

Result<void> LayerWeights::upload(int32_t expert, const uint8_t* packed) {
  const PlacementView view = placement_.view();
  for (int32_t copy = view.copy_begin[expert]; copy < view.copy_begin[expert + 1]; ++copy) {
    const ExpertCopy place = view.copies[copy];
    if (place.rank < topology_.first_rank || place.rank >= topology_.end_rank) continue;
    const CurrentGpu current(topology_.gpu[place.rank]);
    if (auto done = ranks_[place.rank].upload(place.slot, packed); !done) return done;
  }
  return {};
}

}  // namespace monomoe::cuda
