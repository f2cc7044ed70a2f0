// Quantising 128 neighbouring channels, four a lane, with the host's own functions.
#pragma once

#include <cstdint>

#include "numerics/activation_quant.h"
#include "numerics/tensor_core.h"

namespace monomoe::cuda::unfused {

struct QuantisedFour {
  uint32_t codes;  // of this lane's channels, in order
  float scale;     // of the group, in all lanes
};

// x: channels 4 * lane .. + 3 of the group. All lanes call.
__device__ __forceinline__ QuantisedFour quantise_four(const float (&x)[4]) {
  uint32_t largest = 0;
  for (const float value : x) largest = max(largest, magnitude_bits(value));
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  const bool finite = largest < kFp32InfinityBits;
  const ActivationScale s = activation_scale(bits_float(largest), finite);
  uint32_t codes = 0;
  for (int i = 0; i < 4; ++i) codes |= static_cast<uint32_t>(e4m3_encode(mul_rn(x[i], s.inverse))) << (8 * i);
  return {finite ? codes : 0u, s.scale};
}

// Where the four codes of a lane stand in the group's 128 bytes: channels that differ in their low two bits stay neighbours.
__device__ __forceinline__ int place_of_four(int lane) { return permuted_k(4 * lane); }

}  // namespace monomoe::cuda::unfused
