// Packed weights of 64 rows and one K block -> fp32 values and exponent bytes, [128 physical k][64 rows], and token codes likewise.
// Include after one of the vector headers; everything is local to the including file.
#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "numerics/e4m3.h"
#include "numerics/tensor_core.h"
#include "numerics/weight_codes.h"
#include "plan/weight_packing.h"

namespace monomoe::cpu {
namespace {

constexpr int kGroupRows = 64;  // rows expanded at once: values and exponents of a K block then stay in the first-level cache
constexpr int kScaleGroups = 8; // FP4 scales of a row in one K block

// The exponent of a non-zero e4m3 value, -6..8, stored as exponent + 38; zero is stored as 0. The sum of two such bytes is a
// product's exponent + 76; if one factor is zero it stays below any sum of two non-zero ones.
constexpr int kExponentBias = 38;

struct ExpandedWeights {
  float values[kBlockK * kGroupRows];
  uint8_t exponents[kBlockK * kGroupRows];
  uint8_t codes[kBlockK * kGroupRows];             // FP8: e4m3; FP4: twice the e2m1 value as int8
  uint8_t planes[kBlockK / 2 * kGroupRows];        // FP4: packed bytes, [i][t][byte of the word][64 rows]
  uint8_t scale_codes[kScaleGroups * kGroupRows];
};

MONOMOE_VECTOR __m128i load_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
MONOMOE_VECTOR void store_16(uint8_t* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }

// Number (vector, byte) by bits: one round of interleaving the first half of the vectors with the second rotates them left by one.
template <int kCount>
MONOMOE_VECTOR void interleave_halves(__m128i (&v)[kCount]) {
  __m128i next[kCount];
  for (int n = 0; n < kCount / 2; ++n) {
    next[2 * n] = _mm_unpacklo_epi8(v[n], v[n + kCount / 2]);
    next[2 * n + 1] = _mm_unpackhi_epi8(v[n], v[n + kCount / 2]);
  }
  for (int n = 0; n < kCount; ++n) v[n] = next[n];
}

// e4m3 codes, one in the low byte of each lane -> fp32.
MONOMOE_VECTOR Floats decode_e4m3(Ints code) {
  const Ints magnitude = code & 0x7F;
  const Ints is_subnormal = magnitude < 8;
  const Ints normal = (magnitude << 20) + (120 << 23);
  const Ints subnormal = (Ints)(to_floats(magnitude) * broadcast(0x1p-9f));
  return (Floats)((subnormal & is_subnormal) | (normal & ~is_subnormal) | ((code & 0x80) << 24));
}

// FP8: undo the swizzle and transpose 16 rows by 16 k at a time, then decode.
[[maybe_unused]] void expand_fp8(const uint8_t* half, int first_row, ExpandedWeights& out) {
  for (int row = 0; row < kGroupRows; row += 16) {
    for (int k = 0; k < kBlockK; k += 16) {
      __m128i v[16];
      for (int r = 0; r < 16; ++r) v[r] = load_16(half + fp8_half_offset(first_row + row + r, k));
      for (int round = 0; round < 4; ++round) interleave_halves(v);
      for (int j = 0; j < 16; ++j) store_16(out.codes + (k + j) * kGroupRows + row, v[j]);
    }
  }
  for (int n = 0; n < kBlockK * kGroupRows; n += kLanes) store_floats(out.values + n, decode_e4m3(widen_unsigned(out.codes + n)));
}

// FP4 words of 64 rows -> planes of bytes. For a warp of 16 rows, p and t, the eight 16-byte pieces g hold (i mod 2, g or g + 8,
// byte); three rounds of interleaving bring the eight g together, the last step joins the rows g and g + 8.
MONOMOE_VECTOR void split_fp4_planes(const uint8_t* block, uint8_t* planes) {
  for (int piece = 0; piece < 32; ++piece) {
    const int warp = piece / 8, p = piece / 4 % 2, t = piece % 4;
    __m128i v[8];
    for (int g = 0; g < 8; ++g) v[g] = load_16(block + p * 2048 + (32 * warp + 4 * g + t) * 16);
    for (int round = 0; round < 3; ++round) interleave_halves(v);
    for (int i = 0; i < 2; ++i) {
      uint8_t* out = planes + ((2 * p + i) * 4 + t) * 4 * kGroupRows + 16 * warp;
      for (int pair = 0; pair < 2; ++pair) {
        const __m128i low = v[4 * i + pair], high = v[4 * i + 2 + pair];
        store_16(out + (2 * pair) * kGroupRows, _mm_unpacklo_epi64(low, high));
        store_16(out + (2 * pair + 1) * kGroupRows, _mm_unpackhi_epi64(low, high));
      }
    }
  }
}

// Planes -> twice the e2m1 value as int8 (0, 1, 2, 3, 4, 6, 8, 12 and their negatives), in physical order. The sign of zero is
// lost, which the tensor core's sum does not see.
MONOMOE_VECTOR void decode_fp4_planes(const uint8_t* planes, uint8_t* doubled) {
  for (int word = 0; word < 16; ++word) {
    const int i = word / 4, t = word % 4;
    for (int r = 0; r < kGroupRows; r += 4 * kLanes) {
      Bytes y[4];
      for (int b = 0; b < 4; ++b) y[b] = load_bytes(planes + (word * 4 + b) * kGroupRows + r);
      for (int j = 0; j < 8; ++j) {
        const Bytes m = (j % 2 == 0 ? y[j / 2] : y[j / 2] >> 4) & 7;
        const Bytes value = m - (Bytes)(m > 4) - (Bytes)(m > 5) + ((Bytes)(m > 6) & 3);
        const Bytes negative = j < 4 ? (Bytes)(y[j % 4] < 0) : (Bytes)((y[j % 4] & 8) != 0);
        const int physical = 32 * i + 16 * (j / 4) + 4 * t + j % 4;
        store_bytes(doubled + physical * kGroupRows + r, (value ^ negative) - negative);
      }
    }
  }
}

// What one step of the doubled e2m1 value is worth as fp32, for 64 rows and one group of 16 along K. Kept finite, so that a zero
// stays one; beyond fp32's range every non-zero product saturates or vanishes anyway.
MONOMOE_VECTOR void fp4_steps(WeightFormat format, const uint8_t* scale_codes, const int32_t* shifts, float* steps) {
  constexpr float kMost = 0x1.fffffep127f;
  for (int r = 0; r < kGroupRows; ++r) {
    if (format == WeightFormat::kNvfp4) {
      const float step = e4m3_decode(scale_codes[r]) * 0.5f * weight_codes_detail::bounded_power(shifts[r % 16]);
      const float below = step > kMost ? kMost : step;
      steps[r] = below < -kMost ? -kMost : below;
    } else {
      const int exponent = scale_codes[r] - 127 + weight_codes_detail::bounded_shift(shifts[r % 16]);
      steps[r] = weight_codes_detail::bounded_power(exponent) * 0.5f;
    }
  }
}

// The nearest e4m3 value, ties to even, saturating: adding and subtracting 1.5 * 2^(e + 20) rounds to a multiple of 2^(e - 3).
MONOMOE_VECTOR Floats round_to_e4m3(Floats exact) {
  const Floats x = smaller(larger(exact, broadcast(-kE4m3Max)), broadcast(kE4m3Max));
  const Ints exponent = larger((Ints)x & 0x7F800000, all_ints(121 << 23));
  const Floats magic = (Floats)(exponent + ((20 << 23) + 0x400000));
  return (x + magic) - magic;
}

// FP4: e4m3 RNE(e2m1 * scale * 2^shift), the shift of row r being shifts[r % 16] (gate and up rows alternate in eights).
[[maybe_unused]] void expand_fp4(WeightFormat format, const uint8_t* half, int first_row, const int32_t* shifts, ExpandedWeights& out) {
  split_fp4_planes(half + first_row / 64 * 4096, out.planes);
  decode_fp4_planes(out.planes, out.codes);
  for (int group = 0; group < kScaleGroups; ++group) {
    uint8_t* scale_codes = out.scale_codes + group * kGroupRows;
    for (int r = 0; r < kGroupRows; ++r) scale_codes[r] = half[fp4_half_scale_offset(first_row + r, group)];
    float steps[kGroupRows];
    fp4_steps(format, scale_codes, shifts, steps);
    const int t = group / 2, p = group % 2;
    for (int n = 0; n < 16; ++n) {
      const int physical = 32 * (2 * p + n / 8) + 16 * (n / 4 % 2) + 4 * t + n % 4;
      for (int r = 0; r < kGroupRows; r += kLanes) {
        const Floats doubled = to_floats(widen_signed(out.codes + physical * kGroupRows + r));
        store_floats(out.values + physical * kGroupRows + r, round_to_e4m3(doubled * load_floats(steps + r)));
      }
    }
  }
}

// Exponent bytes from the fp32 exponent field, which is exponent + 127 for normal e4m3 values and less than 121 for subnormal ones.
[[maybe_unused]] void expand_exponents(ExpandedWeights& out) {
  const __m128i zero = _mm_setzero_si128();
  for (int n = 0; n < kBlockK * kGroupRows; n += 16) {
    __m128i field[4];
    for (int q = 0; q < 4; ++q) {
      const __m128i bits = _mm_castps_si128(_mm_loadu_ps(out.values + n + 4 * q));
      field[q] = _mm_srli_epi32(_mm_slli_epi32(bits, 1), 24);
    }
    const __m128i fields = _mm_packus_epi16(_mm_packs_epi32(field[0], field[1]), _mm_packs_epi32(field[2], field[3]));
    const __m128i rebased = _mm_subs_epu8(fields, _mm_set1_epi8(127 - kExponentBias));
    const __m128i exponents = _mm_max_epu8(rebased, _mm_set1_epi8(kExponentBias - 6));
    store_16(out.exponents + n, _mm_andnot_si128(_mm_cmpeq_epi8(fields, zero), exponents));
  }
}

// One token's codes of a K block; its exponent byte is repeated four times, so that one load broadcasts it.
struct ExpandedToken {
  float values[kBlockK];
  uint32_t exponents[kBlockK];
};

// Returns whether a code is NaN. The block then counts as zeros: its scale carries the NaN.
[[maybe_unused]] bool expand_token(const uint8_t* codes, ExpandedToken& out) {
  uint32_t nans = 0;
  for (int k = 0; k < kBlockK; ++k) {
    const uint32_t magnitude = codes[k] & 0x7Fu;
    nans |= static_cast<uint32_t>(magnitude == kE4m3NaN);
    const uint32_t field = magnitude >> 3;
    const uint32_t exponent = (field == 0 ? 1 : field) + (kExponentBias - 7);
    out.exponents[k] = select_bits(magnitude == 0, 0, exponent * 0x01010101u);
    out.values[k] = e4m3_decode(codes[k]);
  }
  if (nans != 0) std::memset(&out, 0, sizeof out);
  return nans != 0;
}

}  // namespace
}  // namespace monomoe::cpu
