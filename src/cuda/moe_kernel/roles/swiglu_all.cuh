// SwiGLU of many values at once: the contract's bits without branches and with few instructions, so that the values' latencies overlap.
#pragma once

#include "numerics/bits.h"
#include "numerics/swiglu.h"

namespace monomoe::cuda {

// Gates that the short way below takes: 2^-64 <= |g| < 2^64 and g > -44, so that the denominator lies in [1, 2^64).
__device__ __forceinline__ bool is_ordinary_gate(float g) {
  constexpr uint32_t kSmallest = (127u - 64u) << 23, kSpan = 128u << 23;
  return (float_bits(g) << 1) - (kSmallest << 1) < (kSpan << 1) && g > -44.0f;
}

// exp_contract(x) for x in [-80, 44], where no factor of it over- or underflows: the power of two is added to the exponent.
__device__ __forceinline__ float exp_in_range(float x) {
  const auto [mantissa, shifted] = exp_parts(x);
  return bits_float(float_bits(mantissa) + (float_bits(shifted) << 23));
}

// g / d for d in [1, 2^64) and 2^-64 <= |g| < 2^64 with |g / d| >= 2^-126: Newton steps whose remainders are exact, correctly rounded as div_rn is
// (tests/cuda_compile/numerics_device.cu compares them).
__device__ __forceinline__ float divide_in_range(float g, float d) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  r = fma_rn(fma_rn(-d, r, 1.0f), r, r);
  float q = mul_rn(g, r);
  q = fma_rn(fma_rn(-d, q, g), r, q);
  return fma_rn(fma_rn(-d, q, g), r, q);
}

// clamp_up; a NaN stays one, with other bits.
__device__ __forceinline__ float clamp_up_keeping_nan(float up, float limit) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(up) : "f"(limit));
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(up) : "f"(-limit));
  return up;
}

// swiglu(gate, up, limit) for an ordinary gate and limit >= 2^-64. Below -80 the exponential changes 1 + e^x no more.
__device__ __forceinline__ float swiglu_ordinary(float gate, float up, float limit) {
  const float g = fminf(gate, limit);
  return mul_rn(divide_in_range(g, add_rn(1.0f, exp_in_range(fmaxf(-g, -80.0f)))), clamp_up_keeping_nan(up, limit));
}

struct GateUp {
  float gate, up;
};

// h[i] = swiglu(rows(i)). Where a gate is not ordinary (a zero, an infinity, a NaN, or far below zero) the value is made again the long way.
template <int kCount, class Rows>
__device__ __forceinline__ void swiglu_all(Rows rows, float limit, float (&h)[kCount]) {
  const bool limit_is_ordinary = limit >= 0x1p-64f;
  bool ordinary = limit_is_ordinary;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const GateUp v = rows(i);
    ordinary &= is_ordinary_gate(v.gate);
    h[i] = swiglu_ordinary(v.gate, v.up, limit);
  }
  if (ordinary) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const GateUp v = rows(i);
    if (!limit_is_ordinary || !is_ordinary_gate(v.gate)) h[i] = swiglu(v.gate, v.up, limit);
  }
}

}  // namespace monomoe::cuda
