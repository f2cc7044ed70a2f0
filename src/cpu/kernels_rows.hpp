// The kernels that work along a row: quantisation, SwiGLU, rounding, combining. Plain loops over 128 channels that the compiler
// vectorises for the including file's width; everything is local to that file.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels.hpp"
#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "numerics/swiglu.h"
#include "numerics/tensor_core.h"
#include "plan/weight_packing.h"

namespace monomoe::cpu {
namespace {

static_assert(kGroupChannels == kBlockK);

// 128 codes from logical to physical order: runs of four stay together, so 32 words move.
MONOMOE_VECTOR void store_permuted(const uint8_t* logical, uint8_t* physical) {
  for (int k = 0; k < kBlockK; k += 4) std::memcpy(physical + k, logical + logical_k(k), 4);
}

void quantise_row(const uint16_t* x, int64_t hidden, uint8_t* codes, float* scales) {
  for (int64_t block = 0; block < hidden / kBlockK; ++block) {
    alignas(64) float values[kBlockK];
    alignas(64) uint8_t logical[kBlockK];
    for (int k = 0; k < kBlockK; ++k) values[k] = bf16_decode(x[block * kBlockK + k]);
    quantise_group(values, kBlockK, logical, scales + block);
    store_permuted(logical, codes + block * kBlockK);
  }
}

void swiglu_quantise(const float* sums, int64_t valid_channels, float limit, const float* route_weights, int64_t count,
                     uint8_t* const* mid_codes, float* const* mid_scales) {
  for (int64_t token = 0; token < count; ++token) {
    alignas(64) float gate[kBlockK], up[kBlockK], values[kBlockK];
    for (int c = 0; c < kBlockK; c += kInterleave) {
      const float* run = sums + token * kTileRows + 2 * c;
      std::memcpy(gate + c, run, sizeof(float) * kInterleave);
      std::memcpy(up + c, run + kInterleave, sizeof(float) * kInterleave);
    }
    for (int c = 0; c < kBlockK; ++c) values[c] = swiglu(gate[c], up[c], limit);
    for (int64_t c = valid_channels; c < kBlockK; ++c) values[c] = 0.0f;
    alignas(64) uint8_t logical[kBlockK];
    float scale;
    quantise_group(values, kBlockK, logical, &scale);
    store_permuted(logical, mid_codes[token]);
    *mid_scales[token] = route_scale(scale, route_weights[token]);
  }
}

void round_contribution(const float* sums, int64_t rows, uint16_t* dst) {
  for (int64_t r = 0; r < rows; ++r) dst[r] = bf16_encode(sums[r]);
}

// Apart from its caller's loop, which GCC would otherwise jam into this one and leave scalar.
[[gnu::noinline]] void add_block(const uint16_t* x, float* sum) {
  for (int k = 0; k < kBlockK; ++k) sum[k] += bf16_decode(x[k]);
}

void combine_row(const uint16_t* const* contributions, int64_t count, int64_t hidden, uint16_t* y) {
  for (int64_t block = 0; block < hidden; block += kBlockK) {
    alignas(64) float sum[kBlockK] = {};
    for (int64_t n = 0; n < count; ++n) add_block(contributions[n] + block, sum);
    for (int k = 0; k < kBlockK; ++k) y[block + k] = bf16_encode(sum[k]);
  }
}

}  // namespace
}  // namespace monomoe::cpu
