// FP4 weights as e4m3 codes: the power-of-two shift that keeps a matrix inside the e4m3 window, and the conversion, rounded once.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/fp32.h"

namespace monomoe {

namespace weight_codes_detail {

// A shift outside this range sends every non-zero value to zero or to saturation anyway.
MONOMOE_HD constexpr int bounded_shift(int shift) { return shift < -512 ? -512 : shift > 512 ? 512 : shift; }

// Below 2^-126 every value used here is far under half the smallest e4m3 and above 2^127 far over the largest.
MONOMOE_HD constexpr float bounded_power(int exponent) {
  return power_of_two(exponent < -126 ? -126 : exponent > 127 ? 127 : exponent);
}

MONOMOE_HD constexpr int shift_below_max(double max_abs_product) {
  const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, max_abs_product) & 0x7FFFFFFFFFFFFFFFull;
  const int exponent = static_cast<int>(bits >> 52) - 1023;
  if (exponent == -1023 || exponent == 1024) return 0;
  // 448 = 1.75 * 2^8.
  const bool fits = (bits & 0xFFFFFFFFFFFFFull) <= 0xC000000000000ull;
  return (fits ? 8 : 7) - exponent;
}

}  // namespace weight_codes_detail

// The largest s with max_abs_product * 2^s <= 448, where max_abs_product is the largest |e2m1 * scale| of the matrix, exact. With it
// nothing saturates and as little as possible falls into the subnormals. 0 for a matrix of zeros or without a finite maximum.
MONOMOE_HD constexpr int nvfp4_shift(double max_abs_product) { return weight_codes_detail::shift_below_max(max_abs_product); }
MONOMOE_HD constexpr int mxfp4_shift(double max_abs_product) { return weight_codes_detail::shift_below_max(max_abs_product); }

// e4m3 of e2m1 * e4m3 scale * 2^shift. Both products are exact in fp32, so the encoding is the only rounding; a NaN scale gives NaN.
MONOMOE_HD constexpr std::uint8_t e4m3_from_nvfp4(std::uint8_t nibble, std::uint8_t scale_code, int shift) {
  const float product = mul_rn(e2m1_decode(nibble), e4m3_decode(scale_code));
  return e4m3_encode(mul_rn(product, weight_codes_detail::bounded_power(shift)));
}

// e4m3 of e2m1 * 2^(code - 127 + shift), rounded once; scale code 255 is NaN.
MONOMOE_HD constexpr std::uint8_t e4m3_from_mxfp4(std::uint8_t nibble, std::uint8_t e8m0_code, int shift) {
  if (e8m0_code == kE8m0NaN) return kE4m3NaN;
  const int exponent = e8m0_code - 127 + weight_codes_detail::bounded_shift(shift);
  return e4m3_encode(mul_rn(e2m1_decode(nibble), weight_codes_detail::bounded_power(exponent)));
}

}  // namespace monomoe
