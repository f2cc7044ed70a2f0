// Checks and the first stage, shared by the reference layers.
#include "reference/layer_input.hpp"

#include <fmt/format.h>

#include <cmath>

#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "plan/problem.h"

namespace monomoe {

namespace {

Result<void> check_count(const char* name, size_t found, int64_t wanted) {
  if (static_cast<int64_t>(found) == wanted) return {};
  return usage_error(fmt::format("{} has {} elements; wanted {}", name, found, wanted));
}

Result<void> check_shape(const char* name, int64_t expert, const SourceMatrix& m, int64_t rows, int64_t cols) {
  if (m.rows == rows && m.cols == cols) return {};
  return usage_error(fmt::format("expert {}: {} is [{}, {}]; wanted [{}, {}]", expert, name, m.rows, m.cols, rows, cols));
}

}  // namespace

Result<void> check_layer(const LayerInput& in, std::span<const SourceExpert> experts) {
  if (in.hidden <= 0 || in.hidden % kBlockK != 0) return usage_error(fmt::format("hidden is {}; wanted a multiple of 128", in.hidden));
  if (in.intermediate <= 0 || in.intermediate % 32 != 0) {
    return usage_error(fmt::format("intermediate is {}; wanted a multiple of 32", in.intermediate));
  }
  if (in.tokens < 0 || in.topk < 1) return usage_error(fmt::format("{} tokens with topk {}; wanted >= 0 and >= 1", in.tokens, in.topk));
  if (std::isnan(in.limit) || in.limit <= 0) return usage_error(fmt::format("limit is {}; wanted more than 0 (infinity: none)", in.limit));
  if (in.x.empty()) {
    if (auto ok = check_count("codes", in.codes.size(), in.tokens * in.hidden); !ok) return ok;
    if (auto ok = check_count("scales", in.scales.size(), in.tokens * in.hidden / kBlockK); !ok) return ok;
  } else if (auto ok = check_count("x", in.x.size(), in.tokens * in.hidden); !ok) {
    return ok;
  }
  if (auto ok = check_count("ids", in.ids.size(), in.routes()); !ok) return ok;
  if (auto ok = check_count("weights", in.weights.size(), in.routes()); !ok) return ok;
  const auto num_experts = static_cast<int64_t>(experts.size());
  for (int64_t route = 0; route < in.routes(); ++route) {
    if (in.ids[route] < num_experts) continue;
    return usage_error(fmt::format("token {}, slot {}: expert id {}; there are {} experts", route / in.topk, route % in.topk,
                                   in.ids[route], num_experts));
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    if (auto ok = check_shape("gate", e, experts[e].gate, in.intermediate, in.hidden); !ok) return ok;
    if (auto ok = check_shape("up", e, experts[e].up, in.intermediate, in.hidden); !ok) return ok;
    if (auto ok = check_shape("down", e, experts[e].down, in.hidden, in.intermediate); !ok) return ok;
  }
  return {};
}

StagedTokens stage_tokens(const LayerInput& in) {
  if (in.x.empty()) return {{in.codes.begin(), in.codes.end()}, {in.scales.begin(), in.scales.end()}};
  StagedTokens staged;
  staged.codes.resize(in.tokens * in.hidden);
  staged.scales.resize(in.tokens * in.hidden / kBlockK);
  for (size_t group = 0; group < staged.scales.size(); ++group) {
    float values[kGroupChannels];
    for (int i = 0; i < kGroupChannels; ++i) values[i] = bf16_decode(in.x[group * kGroupChannels + i]);
    quantise_group(values, kGroupChannels, &staged.codes[group * kGroupChannels], &staged.scales[group]);
  }
  return staged;
}

}  // namespace monomoe
