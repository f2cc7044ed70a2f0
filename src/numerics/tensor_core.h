// One k32 step of Hopper's FP8 tensor core for one output element, in integer arithmetic, and the order in which contract N2 feeds it.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/e4m3.h"

namespace monomoe {

constexpr int kStepK = 32;
constexpr int kPromotionK = 128;
constexpr int kAccumulatorFractionBits = 13;

// Inside each 128 of K, physical byte 32i + 16h + 4t + b holds logical k = 32t + 8i + 4h + b (t, i < 4, h < 2, b < 4), so that
// step i is the physical bytes [32i, 32i + 32) and takes the k with (k mod 32) div 8 = i.
MONOMOE_HD constexpr int permuted_k(int logical) {
  const int t = logical >> 5, i = (logical >> 3) & 3, h = (logical >> 2) & 1, b = logical & 3;
  return 32 * i + 16 * h + 4 * t + b;
}

MONOMOE_HD constexpr int logical_k(int physical) {
  const int i = physical >> 5, h = (physical >> 4) & 1, t = (physical >> 2) & 3, b = physical & 3;
  return 32 * t + 8 * i + 4 * h + b;
}

namespace tensor_core_detail {

constexpr int kNoTerm = -1000;

// An e4m3 magnitude is significand * 2^(exponent - 3); a subnormal keeps exponent -6 and a significand below 8.
MONOMOE_HD constexpr int exponent_of(std::uint8_t code) {
  const int field = (code >> 3) & 15;
  return field == 0 ? -6 : field - 7;
}
MONOMOE_HD constexpr int significand_of(std::uint8_t code) { return (code & 7) | (((code >> 3) & 15) == 0 ? 0 : 8); }

// A finite fp32 as significand * 2^(exponent - 23) with the leading bit at 23; zero has significand 0 and exponent kNoTerm.
struct Accumulator {
  std::uint32_t significand;
  int exponent;
};
MONOMOE_HD constexpr Accumulator split(float value) {
  std::uint32_t significand = magnitude_bits(value) & 0x7FFFFFu;
  int exponent = static_cast<int>(magnitude_bits(value) >> 23) - 127;
  if (exponent > -127) return {significand | 0x800000u, exponent};
  if (significand == 0) return {0, kNoTerm};
  for (exponent = -126; significand < 0x800000u; --exponent) significand <<= 1;
  return {significand, exponent};
}

// sum * 2^(exponent - 13), truncated toward zero to 13 fractional bits of its own; zero is +0.
MONOMOE_HD constexpr float normalise(std::int32_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  const std::uint32_t sign = sum < 0 ? 0x80000000u : 0u;
  std::uint32_t significand = sum < 0 ? 0u - static_cast<std::uint32_t>(sum) : static_cast<std::uint32_t>(sum);
  int leading = 31;
  while (((significand >> leading) & 1u) == 0) --leading;
  const int result_exponent = exponent - kAccumulatorFractionBits + leading;
  if (leading > kAccumulatorFractionBits) {
    const int dropped = leading - kAccumulatorFractionBits;
    significand = (significand >> dropped) << dropped;
  }
  // At most 32 products of 15 bits and the accumulator: the sum has fewer than 24 bits.
  significand <<= 23 - leading;
  if (result_exponent > 127) return bits_float(sign | kFp32InfinityBits);
  // Only an accumulator that was subnormal already gets here, alone; its low bits are zeros, so the shift is exact.
  if (result_exponent < -126) return bits_float(sign | (significand >> (-126 - result_exponent)));
  return bits_float(sign | (static_cast<std::uint32_t>(result_exponent + 127) << 23) | (significand & 0x7FFFFFu));
}

}  // namespace tensor_core_detail

// acc + sum of a[k] * b[k] over 32 contiguous e4m3 codes, as the hardware computes it: every term is truncated to 13 fractional bits
// below the largest term's exponent, the sum is exact, then truncated again. A NaN operand, or an accumulator that is not finite
// (a chain that starts from zero never has one), gives 0x7FFFFFFF.
MONOMOE_HD constexpr float tensor_core_step(float acc, const std::uint8_t* a, const std::uint8_t* b) {
  namespace detail = tensor_core_detail;
  const detail::Accumulator c = detail::split(acc);
  bool nan = !is_finite(acc);
  int largest = c.exponent;
  for (int k = 0; k < kStepK; ++k) {
    nan = nan || e4m3_is_nan(a[k]) || e4m3_is_nan(b[k]);
    const bool zero = (a[k] & 0x7F) == 0 || (b[k] & 0x7F) == 0;
    const int exponent = detail::exponent_of(a[k]) + detail::exponent_of(b[k]);
    largest = !zero && exponent > largest ? exponent : largest;
  }
  if (nan) return fp32_nan();

  const int acc_shift = largest - c.exponent + 23 - kAccumulatorFractionBits;
  const auto acc_term = static_cast<std::int32_t>(c.significand >> (acc_shift < 31 ? acc_shift : 31));
  std::int32_t sum = float_bits(acc) >> 31 ? -acc_term : acc_term;
  for (int k = 0; k < kStepK; ++k) {
    // A product of significands is in units of 2^-6; seven more bits bring it to units of 2^-13, before any of them is cut off.
    const int product = (detail::significand_of(a[k]) * detail::significand_of(b[k])) << (kAccumulatorFractionBits - 6);
    const int shift = largest - detail::exponent_of(a[k]) - detail::exponent_of(b[k]);
    const std::int32_t term = product == 0 ? 0 : product >> (shift < 31 ? shift : 31);
    sum += ((a[k] ^ b[k]) & 0x80) != 0 ? -term : term;
  }
  return detail::normalise(sum, largest);
}

// The dot product of one promotion block: four steps over 128 codes in physical order, from a zero accumulator.
MONOMOE_HD constexpr float tensor_core_block(const std::uint8_t* a_physical, const std::uint8_t* b_physical) {
  float acc = 0.0f;
  for (int k = 0; k < kPromotionK; k += kStepK) acc = tensor_core_step(acc, a_physical + k, b_physical + k);
  return acc;
}

}  // namespace monomoe
