// See the header for the sequence of operations; this file is that sequence and the checks before it.
#include "weights/router.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "numerics/bf16.h"
#include "numerics/bits.h"

namespace monomoe {
namespace {

constexpr int64_t kTokenBlock = 4;  // tokens that share one pass over the weights; each token's own sums do not depend on it

float load_float(DType type, const uint8_t* data, int64_t index) {
  if (type == DType::BF16) {
    uint16_t bits;
    std::memcpy(&bits, data + 2 * index, sizeof bits);
    return bf16_decode(bits);
  }
  float value;
  std::memcpy(&value, data + 4 * index, sizeof value);
  return value;
}

int64_t load_id(DType type, const uint8_t* data, int64_t index) {
  if (type == DType::I32) {
    int32_t value;
    std::memcpy(&value, data + 4 * index, sizeof value);
    return value;
  }
  int64_t value;
  std::memcpy(&value, data + 8 * index, sizeof value);
  return value;
}

Result<void> check(const RouterTensors& t, const RouterConfig& c, std::span<const uint16_t> x, int64_t tokens,
                   std::span<const int64_t> token_ids) {
  if (t.weight == nullptr || t.experts < 1 || t.hidden < 1) return usage_error("the router has no weight: found no gate.weight tensor");
  if (c.topk < 1 || c.topk > t.experts)
    return bad_input(fmt::format("top-k is {}, wanted 1 to {} (the number of experts)", c.topk, t.experts));
  if (c.groups < 1 || t.experts % c.groups != 0 || c.topk_groups < 1 || c.topk_groups > c.groups) {
    return bad_input(
        fmt::format("n_group {} and topk_group {} do not fit {} experts; wanted n_group to divide them and topk_group from 1 to n_group",
                    c.groups, c.topk_groups, t.experts));
  }
  if (t.table == nullptr && c.topk > c.topk_groups * (t.experts / c.groups)) {
    return bad_input(
        fmt::format("top-k {} is more than the {} experts of {} groups", c.topk, c.topk_groups * (t.experts / c.groups), c.topk_groups));
  }
  if (tokens < 0 || static_cast<int64_t>(x.size()) != tokens * t.hidden) {
    return usage_error(fmt::format("x has {} values, wanted {} tokens of {}", x.size(), tokens, t.hidden));
  }
  if (t.table == nullptr) return {};
  if (t.table_topk != c.topk) return bad_input(fmt::format("tid2eid has {} experts a token, wanted top-k {}: config.json and tensors are not of the same checkpoint", t.table_topk, c.topk));
  if (static_cast<int64_t>(token_ids.size()) != tokens) {
    return bad_input(fmt::format(
        "this layer chooses experts by token id (tid2eid); found {} token_ids, wanted {}: add token_ids I64 [tokens] to the input",
        token_ids.size(), tokens));
  }
  return {};
}

// The weight as double [hidden][experts], so that the sums of neighbouring experts run side by side.
std::vector<double> transposed_weight(const RouterTensors& t) {
  std::vector<double> out(static_cast<size_t>(t.experts * t.hidden));
  for (int64_t e = 0; e < t.experts; ++e) {
    for (int64_t k = 0; k < t.hidden; ++k)
      out[static_cast<size_t>(k * t.experts + e)] = load_float(t.weight_type, t.weight, e * t.hidden + k);
  }
  return out;
}

// sums[token][expert] for up to kTokenBlock tokens.
void logits_of_block(const std::vector<double>& weight, int64_t hidden, int64_t experts, const uint16_t* x, int64_t tokens,
                     std::vector<double>& sums) {
  std::fill(sums.begin(), sums.end(), 0.0);
  for (int64_t k = 0; k < hidden; ++k) {
    const double* row = &weight[static_cast<size_t>(k * experts)];
    for (int64_t t = 0; t < tokens; ++t) {
      const double value = bf16_decode(x[t * hidden + k]);
      double* sum = &sums[static_cast<size_t>(t * experts)];
      for (int64_t e = 0; e < experts; ++e) sum[e] += value * row[e];
    }
  }
}

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

void score(Scoring scoring, std::span<const float> logits, std::span<float> scores) {
  if (scoring == Scoring::kSoftmax) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    for (size_t e = 0; e < logits.size(); ++e) scores[e] = static_cast<float>(std::exp(logits[e] - largest) / sum);
    return;
  }
  for (size_t e = 0; e < logits.size(); ++e) {
    const double logit = logits[e];
    scores[e] = static_cast<float>(scoring == Scoring::kSigmoid ? 1.0 / (1.0 + std::exp(-logit)) : std::sqrt(softplus(logit)));
  }
}

// One token's choice; buffers are reused from token to token.
class Chooser {
 public:
  Chooser(const RouterTensors& tensors, const RouterConfig& config) : config_(config), bias_(static_cast<size_t>(tensors.experts), 0.0f) {
    for (int64_t e = 0; tensors.bias != nullptr && e < tensors.experts; ++e)
      bias_[static_cast<size_t>(e)] = load_float(tensors.bias_type, tensors.bias, e);
    choice_.resize(bias_.size());
  }

  // False if a choice value is NaN.
  bool choose(std::span<const float> scores, int64_t* ids) {
    for (size_t e = 0; e < scores.size(); ++e) {
      choice_[e] = scores[e] + bias_[e];
      if (std::isnan(choice_[e])) return false;
    }
    candidates_.clear();
    const int64_t per_group = static_cast<int64_t>(scores.size()) / config_.groups;
    for (const int64_t group : best_groups(per_group)) {
      for (int64_t e = group * per_group; e < (group + 1) * per_group; ++e) candidates_.push_back(e);
    }
    std::partial_sort(candidates_.begin(), candidates_.begin() + config_.topk, candidates_.end(), [this](int64_t a, int64_t b) {
      const float x = choice_[static_cast<size_t>(a)], y = choice_[static_cast<size_t>(b)];
      return x != y ? x > y : a < b;
    });
    std::copy_n(candidates_.begin(), config_.topk, ids);
    return true;
  }

 private:
  std::vector<int64_t> best_groups(int64_t per_group) {
    std::vector<int64_t> groups(static_cast<size_t>(config_.groups));
    std::iota(groups.begin(), groups.end(), 0);
    if (config_.topk_groups == config_.groups) return groups;
    std::vector<float> group_scores(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      const auto begin = choice_.begin() + static_cast<int64_t>(g) * per_group;
      std::vector<float> members(begin, begin + per_group);
      const auto best = std::min<int64_t>(config_.best_per_group, per_group);
      std::partial_sort(members.begin(), members.begin() + best, members.end(), std::greater<>());
      float sum = members[0];
      for (int64_t i = 1; i < best; ++i) sum += members[static_cast<size_t>(i)];
      group_scores[g] = sum;
    }
    std::stable_sort(groups.begin(), groups.end(),
                     [&](int64_t a, int64_t b) { return group_scores[static_cast<size_t>(a)] > group_scores[static_cast<size_t>(b)]; });
    groups.resize(static_cast<size_t>(config_.topk_groups));
    return groups;
  }

  const RouterConfig& config_;
  std::vector<float> bias_, choice_;
  std::vector<int64_t> candidates_;
};

Result<void> look_up(const RouterTensors& t, int64_t topk, int64_t token, int64_t token_id, int64_t* ids) {
  if (token_id < 0 || token_id >= t.vocabulary) {
    return bad_input(
        fmt::format("token {}: token id {}, wanted 0 to {} (the rows of tid2eid); correct token_ids (I64, one for each token)",
                    token, token_id, t.vocabulary - 1));
  }
  for (int64_t slot = 0; slot < topk; ++slot) {
    ids[slot] = load_id(t.table_type, t.table, token_id * topk + slot);
    if (ids[slot] < 0 || ids[slot] >= t.experts) {
      return bad_input(fmt::format("tid2eid[{}][{}] (token {}): expert {}, wanted 0 to {}; export the tensor again", token_id, slot, token,
                                   ids[slot], t.experts - 1));
    }
  }
  return {};
}

void weigh(const RouterConfig& config, std::span<const float> scores, const int64_t* ids, float* weights) {
  double sum = 0;
  for (int64_t slot = 0; slot < config.topk; ++slot) sum += scores[static_cast<size_t>(ids[slot])];
  const double divisor = config.norm_topk_prob ? sum + 1e-20 : 1.0;
  for (int64_t slot = 0; slot < config.topk; ++slot) {
    weights[slot] = static_cast<float>(scores[static_cast<size_t>(ids[slot])] / divisor * config.routed_scaling_factor);
  }
}

}  // namespace

int64_t hash_table_entry(const RouterTensors& tensors, int64_t index) { return load_id(tensors.table_type, tensors.table, index); }

Result<Routing> route(const RouterTensors& tensors, const RouterConfig& config, std::span<const uint16_t> x, int64_t tokens,
                      std::span<const int64_t> token_ids) {
  if (Result<void> checked = check(tensors, config, x, tokens, token_ids); !checked) return checked.error();
  const auto experts = static_cast<size_t>(tensors.experts);
  const std::vector<double> weight = transposed_weight(tensors);
  std::vector<double> sums(static_cast<size_t>(kTokenBlock) * experts);
  std::vector<float> logits(experts), scores(experts);
  Chooser chooser(tensors, config);
  Routing out;
  out.tokens = tokens;
  out.topk = config.topk;
  out.ids.resize(static_cast<size_t>(tokens * config.topk));
  out.weights.resize(out.ids.size());
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t in_block = token % kTokenBlock;
    if (in_block == 0) {
      logits_of_block(weight, tensors.hidden, tensors.experts, x.data() + token * tensors.hidden, std::min(kTokenBlock, tokens - token),
                      sums);
    }
    bool finite = true;
    for (size_t e = 0; e < experts; ++e) {
      logits[e] = static_cast<float>(sums[static_cast<size_t>(in_block) * experts + e]);
      finite = finite && is_finite(logits[e]);
    }
    int64_t* ids = out.ids.data() + token * config.topk;
    float* weights = out.weights.data() + token * config.topk;
    if (finite) score(config.scoring, logits, scores);
    if (tensors.table != nullptr) {
      if (Result<void> found = look_up(tensors, config.topk, token, token_ids[static_cast<size_t>(token)], ids); !found)
        return found.error();
    } else if (finite) {
      finite = chooser.choose(scores, ids);
    }
    if (finite) {
      weigh(config, scores, ids, weights);
      continue;
    }
    if (tensors.table == nullptr) std::iota(ids, ids + config.topk, 0);
    std::fill_n(weights, config.topk, fp32_nan());
  }
  return out;
}

}  // namespace monomoe
