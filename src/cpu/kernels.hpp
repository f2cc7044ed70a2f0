// The arithmetic of the CPU backend, one table of functions per vector width. All widths give the same bits: lanes are weight
// rows or channels, never positions along K, and every operation is the contract's (docs/numerics.md).
#pragma once

#include <cstdint>

#include "plan/weight_packing.h"

namespace monomoe::cpu {

// One tile of 256 packed weight rows (128 where an odd last half stands alone), over its whole K.
struct WeightTile {
  const uint8_t* expert = nullptr;  // packed expert, its header first
  const ExpertLayout* layout = nullptr;
  bool down = false;                // which of the two matrices
  int64_t tile = 0;                 // index of the 256-row tile

  MONOMOE_HD constexpr int64_t k_blocks() const { return down ? layout->down_k_blocks : layout->gate_up_k_blocks; }
  MONOMOE_HD constexpr int64_t rows() const { return (down ? layout->down_halves : layout->gate_up_halves) - 2 * tile >= 2 ? 256 : 128; }
};

// Token rows gathered by pointer: codes e4m3 [k_blocks * 128] in physical (permuted) order, scales fp32 [k_blocks].
struct TokenRows {
  const uint8_t* const* codes = nullptr;
  const float* const* scales = nullptr;
  int64_t count = 0;
};

// Most tokens of one tile_sums call: bounds the scratch.
inline constexpr int64_t kMaxTileTokens = 256;

struct Kernels {
  int vector_bits = 0;

  // N2 / N5: finished sums (multiplier applied) for every token and packed row: sums[token * 256 + row].
  // scratch: scratch_bytes, 64-byte aligned, private to the caller's thread.
  void (*tile_sums)(const WeightTile& tile, const TokenRows& tokens, float* sums, void* scratch);
  int64_t scratch_bytes;

  // N3, N4, N6 for a gate_up tile: 128 channels a token -> e4m3 codes in physical order and one scale with the route weight in it.
  // valid_channels (1..128): channels beyond are padding and become exact zeros. limit: +inf = no clamp.
  void (*swiglu_quantise)(const float* sums, int64_t valid_channels, float limit, const float* route_weights, int64_t count,
                          uint8_t* const* mid_codes, float* const* mid_scales);

  // N7, first half: one token's finished sums of a down tile, rounded to bf16.
  void (*round_contribution)(const float* sums, int64_t rows, uint16_t* dst);

  // N1: one bf16 row -> e4m3 codes in physical order and hidden / 128 scales.
  void (*quantise_row)(const uint16_t* x, int64_t hidden, uint8_t* codes, float* scales);

  // N7, second half: sum of count bf16 rows in the given order, from +0 in fp32, rounded once; count 0 gives +0. NaN becomes 0x7FFF.
  void (*combine_row)(const uint16_t* const* contributions, int64_t count, int64_t hidden, uint16_t* y);
};

// Widths this machine can run, ascending (128 always). kernels(bits) wants one of them; 0 takes the widest.
bool has_vectors(int vector_bits);
const Kernels& kernels(int vector_bits);

}  // namespace monomoe::cpu
