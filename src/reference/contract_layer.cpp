// One function per contract step.
#include "reference/contract_layer.hpp"

#include <algorithm>
#include <map>

#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "numerics/fp32.h"
#include "numerics/swiglu.h"
#include "numerics/tensor_core.h"
#include "plan/tiles.h"
#include "reference/decoded_matrix.hpp"

namespace monomoe {

namespace {

struct DecodedExpert {
  DecodedMatrix gate, up, down;
};

// Codes and scales of one row of activations: a token or an intermediate.
struct Activations {
  const uint8_t* codes;
  const float* scales;
};

// N2: 128 of K (fewer at the end, a multiple of 32). Step i takes the k with (k mod 32) div 8 = i.
float block_product(const uint8_t* a, const uint8_t* b, int64_t count) {
  float acc = 0.0f;
  for (int64_t step = 0; step < 4; ++step) {
    uint8_t step_a[kStepK] = {}, step_b[kStepK] = {};
    int taken = 0;
    for (int64_t k = 8 * step; k < count; k += k % 8 == 7 ? 25 : 1) {
      step_a[taken] = a[k];
      step_b[taken++] = b[k];
    }
    acc = tensor_core_step(acc, step_a, step_b);
  }
  return acc;
}

// N2, N5: one output channel.
float finished_sum(const Activations& x, const DecodedMatrix& weights, int64_t row) {
  float sum = 0.0f;
  for (int64_t k = 0; k < weights.cols; k += kBlockK) {
    const float acc = block_product(x.codes + k, &weights.codes[row * weights.cols + k], std::min<int64_t>(kBlockK, weights.cols - k));
    const float scale = x.scales[k / kBlockK];
    sum = fma_rn(acc, weights.has_block_scales() ? mul_rn(scale, weights.block_scale(row, k / kBlockK)) : scale, sum);
  }
  return weights.has_block_scales() ? sum : mul_rn(sum, weights.multiplier);
}

// N2 to N6 for one route.
void intermediate(const Activations& x, const DecodedExpert& expert, float route_weight, float limit, uint8_t* codes, float* scales) {
  const int64_t channels = expert.gate.rows;
  for (int64_t begin = 0; begin < channels; begin += kGroupChannels) {
    const int64_t count = std::min<int64_t>(kGroupChannels, channels - begin);
    float h[kGroupChannels];
    for (int64_t c = 0; c < count; ++c) {
      h[c] = swiglu(finished_sum(x, expert.gate, begin + c), finished_sum(x, expert.up, begin + c), limit);
    }
    float scale;
    quantise_group(h, static_cast<int>(count), codes + begin, &scale);
    scales[begin / kGroupChannels] = route_scale(scale, route_weight);
  }
}

// N7, second half.
void combine(const LayerInput& in, int64_t token, const std::vector<uint16_t>& contributions, uint16_t* y) {
  for (int64_t channel = 0; channel < in.hidden; ++channel) {
    float sum = 0.0f;
    for (int64_t route = token * in.topk; route < (token + 1) * in.topk; ++route) {
      if (in.ids[route] >= 0) sum = add_rn(sum, bf16_decode(contributions[route * in.hidden + channel]));
    }
    y[channel] = bf16_encode(sum);
  }
}

}  // namespace

Result<ContractResult> contract_layer(const LayerInput& in, std::span<const SourceExpert> experts) {
  if (auto checked = check_layer(in, experts); !checked) return checked.error();
  for (const SourceExpert& expert : experts) {
    for (const SourceMatrix* m : {&expert.gate, &expert.up, &expert.down}) {
      if (m->format == WeightFormat::kBf16) return usage_error("the contract has no BF16 weights: quantise them first");
    }
  }
  const int64_t blocks = ceil_div(in.intermediate, kBlockK);
  ContractResult result;
  ContractStages& stages = result.stages;
  stages.tokens = stage_tokens(in);
  stages.mid_codes.assign(in.routes() * blocks * kBlockK, 0);
  stages.mid_scales.assign(in.routes() * blocks, 0.0f);
  stages.contributions.assign(in.routes() * in.hidden, 0);
  result.y.resize(in.tokens * in.hidden);

  std::map<int64_t, DecodedExpert> decoded;
  for (int64_t token = 0; token < in.tokens; ++token) {
    for (int64_t route = token * in.topk; route < (token + 1) * in.topk; ++route) {
      const int64_t id = in.ids[route];
      if (id < 0) continue;  // N8
      if (!decoded.contains(id)) {
        decoded[id] = {decode_matrix(experts[id].gate), decode_matrix(experts[id].up), decode_matrix(experts[id].down)};
      }
      const Activations x{&stages.tokens.codes[token * in.hidden], &stages.tokens.scales[token * in.hidden / kBlockK]};
      uint8_t* codes = &stages.mid_codes[route * blocks * kBlockK];
      float* scales = &stages.mid_scales[route * blocks];
      intermediate(x, decoded[id], in.weights[route], in.limit, codes, scales);
      for (int64_t channel = 0; channel < in.hidden; ++channel) {
        stages.contributions[route * in.hidden + channel] = bf16_encode(finished_sum({codes, scales}, decoded[id].down, channel));
      }
    }
    combine(in, token, stages.contributions, &result.y[token * in.hidden]);
  }
  return result;
}

}  // namespace monomoe
