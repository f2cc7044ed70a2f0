// SwiGLU of many values at once: the contract's bits without a branch per division, so that the values' latencies overlap.
#pragma once

#include "numerics/bits.h"
#include "numerics/swiglu.h"

namespace monomoe::cuda {

// g / d for d in [1, infinity] and 2^-64 <= |g| < 2^64 with |g / d| >= 2^-126 or d infinite: Newton steps whose remainders are exact, correctly
// rounded as div_rn is (tests/cuda_compile/numerics_device.cu compares them). A large d is brought into the middle of the range by a power of two.
__device__ __forceinline__ float divide_in_range(float g, float d) {
  const bool large = d >= 0x1p64f;
  const float divisor = large ? mul_rn(d, 0x1p-32f) : d;
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(divisor));
  r = fma_rn(fma_rn(-divisor, r, 1.0f), r, r);
  float q = mul_rn(g, r);
  q = fma_rn(fma_rn(-divisor, q, g), r, q);
  q = fma_rn(fma_rn(-divisor, q, g), r, q);
  if (large) q = mul_rn(q, 0x1p-32f);
  return d == bits_float(kFp32InfinityBits) ? mul_rn(g, 0.0f) : q;
}
__device__ __forceinline__ bool division_in_range(float g) {
  constexpr uint32_t kSmallest = (127u - 64u) << 23, kSpan = 128u << 23;
  return magnitude_bits(g) - kSmallest < kSpan;
}

struct GateUp {
  float gate, up;
};

// h[i] = swiglu(rows(i)). Gates outside the range above (zeros, infinities, NaN) send all of the thread's values through div_rn. Where d is large, g is
// its negative logarithm, so the quotient stays far from the subnormals.
template <int kCount, class Rows>
__device__ __forceinline__ void swiglu_all(Rows rows, float limit, float (&h)[kCount]) {
  bool ordinary = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const GateUp v = rows(i);
    const float g = clamp_gate(v.gate, limit), d = add_rn(1.0f, exp_contract(-g));
    ordinary &= division_in_range(g);
    h[i] = mul_rn(divide_in_range(g, d), clamp_up(v.up, limit));
  }
  if (ordinary) return;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const GateUp v = rows(i);
    h[i] = swiglu(v.gate, v.up, limit);
  }
}

}  // namespace monomoe::cuda
