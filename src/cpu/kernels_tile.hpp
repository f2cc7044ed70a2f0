// tile_sums: the tensor core's arithmetic for one weight tile and up to 256 tokens. Lanes are weight rows. Include after one of the
// vector headers; everything is local to the including file.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels.hpp"
#include "cpu/kernels_expand.hpp"
#include "numerics/bits.h"

namespace monomoe::cpu {
namespace {

constexpr int kChunk = 4;                     // vectors of rows worked on together: one vector of their exponent bytes
constexpr int kChunkRows = kChunk * kLanes;
constexpr int kSteps = kPromotionK / kStepK;

struct TileScratch {
  ExpandedWeights weights;
  ExpandedToken tokens[kMaxTileTokens];
  float token_scales[kMaxTileTokens];
  float row_scales[kTileRows];
  float row_multipliers[kTileRows];
};

// Largest product exponent + 76 of each row, per step; a row without any non-zero product gets less than 64.
MONOMOE_VECTOR void largest_exponents(const uint8_t* weights, const uint32_t* token, uint8_t (&out)[kSteps][kChunkRows]) {
  Bytes largest[kSteps] = {};
  for (int k = 0; k < kStepK; ++k) {
    for (int step = 0; step < kSteps; ++step) {
      const int n = step * kStepK + k;
      const Bytes sum = load_bytes(weights + n * kGroupRows) + broadcast_word(token[n]);
      largest[step] = larger_unsigned(largest[step], sum);
    }
  }
  for (int step = 0; step < kSteps; ++step) store_bytes(out[step], largest[step]);
}

// One k32 step: every term in units of 2^(E - 13), truncated toward zero, summed exactly, then 13 fractional bits kept. The
// products are exact in fp32 (8 bits) and so is the scaling. Without any term E is too small, but then every term is zero.
MONOMOE_VECTOR void tensor_step(const float* weights, const float* token, const uint8_t* largest, Floats (&acc)[kChunk]) {
  Ints exponent[kChunk], sum[kChunk];
  Floats scale[kChunk];
  for (int v = 0; v < kChunk; ++v) {
    // fp32 field = exponent + 127; a zero accumulator's field makes it negative, so it never wins.
    const Ints acc_exponent = (Ints)(((Words)acc[v] << 1) >> 24) - (127 - 2 * kExponentBias);
    exponent[v] = larger(widen_unsigned(largest + v * kLanes), acc_exponent);
    scale[v] = (Floats)((127 + kAccumulatorFractionBits + 2 * kExponentBias - exponent[v]) << 23);
    sum[v] = truncate(acc[v] * scale[v]);
  }
  for (int k = 0; k < kStepK; ++k) {
    const Floats b = broadcast(token[k]);
    for (int v = 0; v < kChunk; ++v) sum[v] += truncate(load_floats(weights + k * kGroupRows + v * kLanes) * b * scale[v]);
  }
  for (int v = 0; v < kChunk; ++v) {
    const Floats kept = (Floats)((Ints)to_floats(sum[v]) & ~0x3FF);
    acc[v] = kept * (Floats)((exponent[v] + (127 - kAccumulatorFractionBits - 2 * kExponentBias)) << 23);
  }
}

// sums += (token . weights) * scale for one K block and 64 rows.
[[gnu::noinline]] void multiply_block(const ExpandedWeights& weights, const ExpandedToken& token, float token_scale, const float* row_scales,
                                      float* sums) {
  for (int row = 0; row < kGroupRows; row += kChunkRows) {
    uint8_t largest[kSteps][kChunkRows];
    largest_exponents(weights.exponents + row, token.exponents, largest);
    Floats acc[kChunk] = {};
    for (int step = 0; step < kSteps; ++step) {
      const int k = step * kStepK;
      tensor_step(weights.values + k * kGroupRows + row, token.values + k, largest[step], acc);
    }
    for (int v = 0; v < kChunk; ++v) {
      const int r = row + v * kLanes;
      const Floats scale = broadcast(token_scale) * load_floats(row_scales + r);
      store_floats(sums + r, fused(acc[v], scale, load_floats(sums + r)));
    }
  }
}

// One promotion scale per row: FP8's block scale, 1 for FP4, which leaves the activation scale as it is.
MONOMOE_VECTOR void load_row_scales(const WeightTile& tile, WeightFormat format, int64_t k_block, float* row_scales) {
  const ExpertLayout& layout = *tile.layout;
  float gate[2] = {1.0f, 1.0f}, up[2] = {1.0f, 1.0f};  // by half; for down both are the half's own
  if (format == WeightFormat::kFp8) {
    for (int64_t half = 0; half < tile.rows() / kHalfRows; ++half) {
      const int64_t block = (tile.down ? 2 * tile.tile + half : tile.tile) * tile.k_blocks() + k_block;
      std::memcpy(&gate[half], tile.expert + (tile.down ? layout.down_scales_begin : layout.gate_scales_begin) + block * 4, 4);
      std::memcpy(&up[half], tile.expert + (tile.down ? layout.down_scales_begin : layout.up_scales_begin) + block * 4, 4);
    }
  }
  for (int r = 0; r < kTileRows; ++r) row_scales[r] = r % 16 < kInterleave ? gate[r / kHalfRows] : up[r / kHalfRows];
}

MONOMOE_VECTOR void finish_sums(int64_t tokens, int64_t rows, const float* multipliers, float* sums) {
  for (int64_t token = 0; token < tokens; ++token) {
    for (int64_t r = 0; r < rows; r += kLanes) {
      float* p = sums + token * kTileRows + r;
      const Floats finished = load_floats(p) * load_floats(multipliers + r);
      const Ints is_nan = (Ints)(finished != finished);
      store_floats(p, (Floats)(((Ints)finished & ~is_nan) | (static_cast<int32_t>(kFp32NaNBits) & is_nan)));
    }
  }
}

void tile_sums(const WeightTile& tile, const TokenRows& tokens, float* sums, void* scratch_memory) {
  TileScratch& scratch = *static_cast<TileScratch*>(scratch_memory);
  const ExpertLayout& layout = *tile.layout;
  PackedExpertHeader header;
  std::memcpy(&header, tile.expert, sizeof header);
  const auto format = static_cast<WeightFormat>(header.format);
  const int64_t rows = tile.rows(), k_blocks = tile.k_blocks();
  int32_t shifts[2 * kInterleave];
  for (int r = 0; r < kTileRows; ++r) {
    const bool is_up = r % (2 * kInterleave) >= kInterleave;
    shifts[r % (2 * kInterleave)] = tile.down ? header.down_shift : is_up ? header.up_shift : header.gate_shift;
    scratch.row_multipliers[r] = tile.down ? header.down_multiplier : is_up ? header.up_multiplier : header.gate_multiplier;
  }
  for (int64_t token = 0; token < tokens.count; ++token) {
    for (int64_t r = 0; r < rows; ++r) sums[token * kTileRows + r] = 0.0f;
  }
  for (int64_t k_block = 0; k_block < k_blocks; ++k_block) {
    for (int64_t token = 0; token < tokens.count; ++token) {
      const bool has_nan = expand_token(tokens.codes[token] + k_block * kBlockK, scratch.tokens[token]);
      scratch.token_scales[token] = has_nan ? fp32_nan() : tokens.scales[token][k_block];
    }
    load_row_scales(tile, format, k_block, scratch.row_scales);
    for (int64_t row = 0; row < rows; row += kGroupRows) {
      const int64_t half = 2 * tile.tile + row / kHalfRows;
      const uint8_t* packed = tile.expert + (tile.down ? layout.down_half(half, k_block) : layout.gate_up_half(half, k_block));
      const int first_row = static_cast<int>(row % kHalfRows);
      if (format == WeightFormat::kFp8) {
        expand_fp8(packed, first_row, scratch.weights);
      } else {
        expand_fp4(format, packed, first_row, shifts, scratch.weights);
      }
      expand_exponents(scratch.weights);
      for (int64_t token = 0; token < tokens.count; ++token) {
        multiply_block(scratch.weights, scratch.tokens[token], scratch.token_scales[token], scratch.row_scales + row,
                       sums + token * kTileRows + row);
      }
    }
  }
  finish_sums(tokens.count, rows, scratch.row_multipliers, sums);
}

}  // namespace
}  // namespace monomoe::cpu
