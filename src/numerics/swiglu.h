// Contract N3: the clamped SwiGLU as one written-down sequence of correctly rounded fp32 operations, with its own exponential. There
// are only selects and no branches, so a loop over channels vectorises and every vector width gives the same bits.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/fp32.h"

namespace monomoe {

// e^x = mantissa * 2^n, with n in the low mantissa bits of `shifted` (0x4B400000 + n) and mantissa near [0.7, 1.42].
struct ExpParts {
  float mantissa, shifted;
};

// For x in [-104, 89].
MONOMOE_HD inline ExpParts exp_parts(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e400p-1f;   // 15 significant bits: n * kLn2High is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;   // ln 2 - kLn2High
  constexpr float kToInteger = 0x1.8p23f;      // adding it rounds to an integer, which then stands in the low mantissa bits
  const float shifted = fma_rn(x, kLog2E, kToInteger);
  const float n = add_rn(shifted, -kToInteger);
  const float r = fma_rn(n, -kLn2Low, fma_rn(n, -kLn2High, x));  // |r| <= ln 2 / 2, up to rounding

  float q = 0x1.a12a62p-13f;
  q = fma_rn(q, r, 0x1.6d4944p-10f);
  q = fma_rn(q, r, 0x1.1110dep-7f);
  q = fma_rn(q, r, 0x1.5554e4p-5f);
  q = fma_rn(q, r, 0x1.555556p-3f);
  q = fma_rn(q, r, 0.5f);
  return {add_rn(1.0f, fma_rn(mul_rn(r, r), q, r)), shifted};
}

// e^x within 1 ulp of the exact value (docs/numerics.md states the measured worst case). +inf from 128 ln 2 on, +0 below -150 ln 2,
// gradual underflow between; NaN stays NaN.
MONOMOE_HD inline float exp_contract(float x) {
  // Beyond these the result is 0 or infinity anyway; the bounds keep n inside what two exponent fields can hold.
  const float low = x < -104.0f ? -104.0f : x;
  const auto [mantissa, shifted] = exp_parts(low > 89.0f ? 89.0f : low);

  // 2^n in two factors: the first product is exact, so only the last one rounds, overflows or underflows.
  const std::int32_t exponent = static_cast<std::int32_t>(float_bits(shifted) - 0x4B400000u);
  const std::int32_t half = exponent >> 1;
  const float first = bits_float((static_cast<std::uint32_t>(half) + 127u) << 23);
  const float second = bits_float((static_cast<std::uint32_t>(exponent) - static_cast<std::uint32_t>(half) + 127u) << 23);
  return mul_rn(mul_rn(mantissa, first), second);
}

// x / (1 + e^-x). Below -128 ln 2 the exponential overflows and the result is -0; -inf gives NaN.
MONOMOE_HD inline float silu(float x) { return div_rn(x, add_rn(1.0f, exp_contract(-x))); }

// The gate is clamped from above only, the up projection on both sides; a NaN passes both. limit = +inf means no clamp.
MONOMOE_HD inline float clamp_gate(float gate, float limit) { return gate > limit ? limit : gate; }
MONOMOE_HD inline float clamp_up(float up, float limit) {
  const float above = up > limit ? limit : up;
  return above < -limit ? -limit : above;
}
MONOMOE_HD inline float swiglu(float gate, float up, float limit) { return mul_rn(silu(clamp_gate(gate, limit)), clamp_up(up, limit)); }

}  // namespace monomoe
