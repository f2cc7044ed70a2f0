// The packed form of one expert: one layout for every batch size, contiguous, so that an expert can be replaced alone.
//
//   header | gate_up tiles | down tiles | block scales (FP8 only)
//
// A tile is [256 rows x 128 K]; its two halves of 128 rows are contiguous each, so decode copies 256 rows and prefill 128 at
// once. Order of pieces: [tile][K block][half]. Inside a K block of 128 the order along K is permuted (permuted_k in
// numerics/tensor_core.h): physical byte 32i+16h+4t+b holds logical k = 32t+8i+4h+b, and activations follow the same order.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "plan/problem.h"
#include "plan/swizzle.h"
#include "plan/tiles.h"

namespace monomoe {

// Version of everything in this file, written into packed checkpoints and compared when they are read. Any change of a byte of a packed
// expert raises it; a test holds the bytes of known experts against it.
inline constexpr int kPackedLayoutVersion = 1;

// First bytes of a packed expert. A finished sum is multiplied once by its matrix's multiplier (1 for FP8;
// NVFP4: weight_scale_2 * 2^-shift; MXFP4: 2^-shift). shift is the power of two applied when FP4 becomes e4m3.
struct PackedExpertHeader {
  float gate_multiplier, up_multiplier, down_multiplier;
  int32_t gate_shift, up_shift, down_shift;
  int32_t format;  // WeightFormat
  int32_t reserved;
};
inline constexpr int64_t kPackedHeaderBytes = kRegionAlign;
static_assert(sizeof(PackedExpertHeader) <= kPackedHeaderBytes);

inline constexpr int64_t kFp8HalfBytes = kHalfRows * kBlockK;                               // 16384
inline constexpr int64_t kFp4CodeBytes = kHalfRows * kBlockK / 2;                           // 8192: [2 blocks of 64 rows][4096]
inline constexpr int64_t kFp4ScaleBytes = kHalfRows * kBlockK / 16;                         // 1024: [2 blocks of 64 rows][512]
inline constexpr int64_t kFp4HalfBytes = kFp4CodeBytes + kFp4ScaleBytes;                    // 9216

MONOMOE_HD constexpr int64_t half_bytes(WeightFormat format) { return format == WeightFormat::kFp8 ? kFp8HalfBytes : kFp4HalfBytes; }

// Byte offset of one half inside a matrix of num_halves halves of rows and k_blocks blocks along K. An odd last half stands alone.
MONOMOE_HD constexpr int64_t half_offset(int64_t half, int64_t k_block, int64_t num_halves, int64_t k_blocks, int64_t bytes) {
  const int64_t tile_begin = half / 2 * 2;
  const int64_t halves_in_tile = min_of(2, num_halves - tile_begin);
  return (tile_begin * k_blocks + k_block * halves_in_tile + (half - tile_begin)) * bytes;
}

// Where the parts of one packed expert begin, in bytes.
struct ExpertLayout {
  int64_t gate_up_halves, gate_up_k_blocks;  // 2 * intermediate_blocks, hidden_blocks
  int64_t down_halves, down_k_blocks;        // hidden_blocks, intermediate_blocks
  int64_t half_bytes;
  int64_t gate_up_begin, down_begin;
  int64_t gate_scales_begin, up_scales_begin, down_scales_begin;  // fp32; gate, up [intermediate_blocks][hidden_blocks]; down transposed sizes
  int64_t bytes;

  MONOMOE_HD constexpr int64_t gate_up_half(int64_t half, int64_t k_block) const {
    return gate_up_begin + half_offset(half, k_block, gate_up_halves, gate_up_k_blocks, half_bytes);
  }
  MONOMOE_HD constexpr int64_t down_half(int64_t half, int64_t k_block) const {
    return down_begin + half_offset(half, k_block, down_halves, down_k_blocks, half_bytes);
  }
};

MONOMOE_HD constexpr ExpertLayout expert_layout(const Problem& p) {
  ExpertLayout layout{};
  layout.gate_up_halves = 2 * p.intermediate_blocks();
  layout.gate_up_k_blocks = p.hidden_blocks();
  layout.down_halves = p.hidden_blocks();
  layout.down_k_blocks = p.intermediate_blocks();
  layout.half_bytes = half_bytes(p.weights);
  layout.gate_up_begin = kPackedHeaderBytes;
  layout.down_begin = layout.gate_up_begin + layout.gate_up_halves * layout.gate_up_k_blocks * layout.half_bytes;
  layout.gate_scales_begin = round_up(layout.down_begin + layout.down_halves * layout.down_k_blocks * layout.half_bytes, kRegionAlign);
  const int64_t scale_bytes = p.weights == WeightFormat::kFp8 ? p.intermediate_blocks() * p.hidden_blocks() * 4 : 0;
  layout.up_scales_begin = layout.gate_scales_begin + scale_bytes;
  layout.down_scales_begin = layout.up_scales_begin + scale_bytes;
  layout.bytes = round_up(layout.down_scales_begin + scale_bytes, kRegionAlign);
  return layout;
}

// Row r (0..127) of gate_up half `half`: which matrix and which channel of it.
struct GateUpRow {
  bool is_up;
  int64_t channel;
};
MONOMOE_HD constexpr GateUpRow gate_up_row(int64_t half, int64_t row) {
  const int64_t pair = row / (2 * kInterleave);
  const int64_t within = row % (2 * kInterleave);
  return {within >= kInterleave, half * (kHalfRows / 2) + pair * kInterleave + within % kInterleave};
}

// FP4 codes inside a block of 64 rows (4096 bytes): lane = 32*warp + 4*g + t holds rows 16*warp + g and + 8. A 32-bit word is
// the 8 codes of one row at logical k = 32t + 8i .. +7. One lane's two 16-byte loads p = 0, 1 are the words
// (i = 2p, row g) (2p, g + 8) (2p + 1, g) (2p + 1, g + 8). This is the byte offset of word (row 0..63, t 0..3, i 0..3).
MONOMOE_HD constexpr int64_t fp4_word_offset(int64_t row, int64_t t, int64_t i) {
  const int64_t lane = 32 * (row / 16) + 4 * (row % 8) + t;
  const int64_t upper = row % 16 / 8;
  return (i / 2) * 2048 + lane * 16 + ((i % 2) * 2 + upper) * 4;
}

// Bits of code j (0..7, in k order) inside the word: three bits of magnitude and one of sign, placed so that two masks and a
// byte permute expand four weights at once.
MONOMOE_HD constexpr int fp4_magnitude_bit(int j) { return j < 4 ? 4 * j : 16 + 4 * (j - 4); }
MONOMOE_HD constexpr int fp4_sign_bit(int j) { return j < 4 ? 8 * j + 7 : 8 * (j - 4) + 3; }

// Eight checkpoint codes (code j in bits 4j..4j+3: little-endian load of four bytes, low nibble = even k) -> packed word, and back.
MONOMOE_HD constexpr uint32_t pack_fp4_word(uint32_t codes) {
  uint32_t word = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = codes >> (4 * j);
    word |= (code & 7u) << fp4_magnitude_bit(j) | ((code >> 3) & 1u) << fp4_sign_bit(j);
  }
  return word;
}
MONOMOE_HD constexpr uint32_t unpack_fp4_word(uint32_t word) {
  uint32_t codes = 0;
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = (word >> fp4_magnitude_bit(j) & 7u) | (word >> fp4_sign_bit(j) & 1u) << 3;
    codes |= code << (4 * j);
  }
  return codes;
}

// FP4 scales inside a block of 64 rows (512 bytes): one 32-bit word a lane, (g, 2t) (g + 8, 2t) (g, 2t + 1) (g + 8, 2t + 1),
// group = 0..7 of 16 along K. NVFP4 stores its e4m3 scale code; MXFP4 stores its e8m0 code for both groups of a 32.
MONOMOE_HD constexpr int64_t fp4_scale_offset(int64_t row, int64_t group) {
  const int64_t lane = 32 * (row / 16) + 4 * (row % 8) + group / 2;
  return lane * 4 + (group % 2) * 2 + row % 16 / 8;
}

// Offsets inside one half (128 rows).
MONOMOE_HD constexpr int64_t fp4_half_word_offset(int64_t row, int64_t t, int64_t i) {
  return row / 64 * 4096 + fp4_word_offset(row % 64, t, i);
}
MONOMOE_HD constexpr int64_t fp4_half_scale_offset(int64_t row, int64_t group) {
  return kFp4CodeBytes + row / 64 * 512 + fp4_scale_offset(row % 64, group);
}
// FP8: rows of 128 bytes, K permuted, 128-byte swizzle; physical is the permuted position 0..127.
MONOMOE_HD constexpr int64_t fp8_half_offset(int64_t row, int64_t physical) { return swizzle_128b(row, physical); }

}  // namespace monomoe
