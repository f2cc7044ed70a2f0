// See bench_routes.hpp. Experts are drawn without replacement by removing the weights of those that a token already has.
#include "layer/bench_routes.hpp"

#include <algorithm>
#include <cmath>

#include "reference/random_layer.hpp"

namespace monomoe::layer {
namespace {

constexpr uint64_t kIdStream = 0x1D5;  // of random_bits; each rank has its own from here on

class Draw {
 public:
  Draw(std::vector<double> weights, uint64_t seed, uint64_t stream) : weights_(std::move(weights)), seed_(seed), stream_(stream) {}

  void begin_token() { left_ = weights_; taken_.assign(weights_.size(), false); }
  bool is_exhausted() const { return std::all_of(taken_.begin(), taken_.end(), [](bool taken) { return taken; }); }
  void take(int64_t expert) {
    left_[expert] = 0;
    taken_[expert] = true;
  }
  // An expert that is not taken; counter: of this draw.
  int64_t next(uint64_t counter) const {
    double total = 0;
    for (const double weight : left_) total += weight;
    const double target = total * (static_cast<double>(random_bits(seed_, stream_, counter) >> 11) * 0x1p-53);
    double sum = 0;
    int64_t chosen = -1;
    for (int64_t e = 0; e < static_cast<int64_t>(left_.size()); ++e) {
      if (taken_[e] || (left_[e] == 0 && chosen >= 0)) continue;
      chosen = e;  // the first that is left where all weights are too small to count
      sum += left_[e];
      if (sum > target) break;
    }
    return chosen;
  }

 private:
  std::vector<double> weights_, left_;
  std::vector<bool> taken_;
  uint64_t seed_, stream_;
};

std::vector<double> expert_weights(const Routing& routing, int64_t experts) {
  std::vector<double> weights(experts, 1.0);
  for (int64_t e = 0; e < experts && routing.kind == RoutingKind::kZipf; ++e) weights[e] = std::pow(static_cast<double>(e + 1), -routing.value);
  return weights;
}

// Whether the token is one of the share: floor(share * n) of any first n tokens are.
bool is_hot(const Routing& routing, int64_t token) {
  return routing.kind == RoutingKind::kHot &&
         std::floor(static_cast<double>(token + 1) * routing.value) > std::floor(static_cast<double>(token) * routing.value);
}

}  // namespace

std::vector<int32_t> bench_routes(const Routing& routing, int64_t experts, int64_t topk, int64_t tokens, uint64_t seed, int32_t rank) {
  Draw draw(expert_weights(routing, experts), seed, kIdStream + static_cast<uint64_t>(rank));
  std::vector<int32_t> ids;
  ids.reserve(tokens * topk);
  for (int64_t token = 0; token < tokens; ++token) {
    draw.begin_token();
    const bool hot = is_hot(routing, token);
    if (routing.kind == RoutingKind::kHot && !hot && experts > 1) draw.take(0);
    for (int64_t slot = 0; slot < topk; ++slot) {
      if (draw.is_exhausted()) draw.begin_token();
      const int64_t expert = hot && slot == 0 ? 0 : draw.next(static_cast<uint64_t>(token * topk + slot));
      draw.take(expert);
      ids.push_back(static_cast<int32_t>(expert));
    }
  }
  return ids;
}

}  // namespace monomoe::layer
