// Contract N1, N4 and N6: one fp32 scale per 128 channels of a row, codes in e4m3, and the route weight folded into the scale.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/e4m3.h"
#include "numerics/fp32.h"

namespace monomoe {

constexpr int kGroupChannels = 128;
// Keeps 448 / m finite for a row of zeros; a group below it still decodes, only with fewer bits.
constexpr float kMinAmax = 1e-10f;

struct ActivationScale {
  float scale;    // what a code is worth
  float inverse;  // what a value is multiplied by before it is encoded
};

// amax: the group's largest magnitude; finite: whether all of the group is. A non-finite group has scale NaN and inverse 0.
MONOMOE_HD constexpr ActivationScale activation_scale(float amax, bool finite) {
  if (!finite) return {fp32_nan(), 0.0f};
  const float m = amax > kMinAmax ? amax : kMinAmax;
  return {div_rn(m, kE4m3Max), div_rn(kE4m3Max, m)};
}

// Quantises one group (count <= kGroupChannels values). A group with a NaN or Inf gets codes 0 and scale NaN, so that the NaN
// reaches every output of its row through the scale and never through the tensor core.
MONOMOE_HD constexpr void quantise_group(const float* x, int count, std::uint8_t* codes, float* scale) {
  std::uint32_t largest = 0;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = magnitude_bits(x[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  const bool finite = largest < kFp32InfinityBits;
  const ActivationScale s = activation_scale(bits_float(largest), finite);
  for (int i = 0; i < count; ++i) codes[i] = finite ? e4m3_encode(mul_rn(x[i], s.inverse)) : std::uint8_t{0};
  *scale = s.scale;
}

// N6: the product is rounded once. One that is not finite, as with any weight that is not, gives the NaN scale, which marks the row.
MONOMOE_HD constexpr float route_scale(float scale, float route_weight) {
  const float product = mul_rn(scale, route_weight);
  return is_finite(product) ? product : fp32_nan();
}

}  // namespace monomoe
