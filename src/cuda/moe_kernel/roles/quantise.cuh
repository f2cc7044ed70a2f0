// Quantising 128 channels held by sixteen lanes, eight neighbouring channels each: what dispatch does to tokens.
#pragma once

#include "cuda/ptx/copy.cuh"
#include "numerics/activation_quant.h"
#include "numerics/bf16.h"

namespace monomoe::cuda {

// words: this lane's codes (k 0..3 and 4..7 of its eight); scale: of the group, in all sixteen lanes. All 32 lanes call. Several independent groups at
// once, so that the latencies of one hide the other's.
template <int kGroups>
__device__ __forceinline__ void quantise_eight(const float (&x)[kGroups][8], uint32_t (&words)[kGroups][2], float (&scale)[kGroups], int lane) {
  uint32_t largest[kGroups];
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    largest[k] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest[k] = max(largest[k], magnitude_bits(x[k][i]));
  }
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const uint32_t low = __reduce_max_sync(0xFFFFFFFFu, lane < 16 ? largest[k] : 0u), high = __reduce_max_sync(0xFFFFFFFFu, lane < 16 ? 0u : largest[k]);
    largest[k] = lane < 16 ? low : high;
  }
#pragma unroll
  for (int k = 0; k < kGroups; ++k) {
    const bool finite = largest[k] < kFp32InfinityBits;
    const ActivationScale s = activation_scale(bits_float(largest[k]), finite);
    scale[k] = s.scale;
    words[k][0] = words[k][1] = 0;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const uint32_t codes = ptx::encode_e4m3_pair(mul_rn(x[k][i], s.inverse), mul_rn(x[k][i + 1], s.inverse));
      words[k][i / 4] |= finite ? codes << (8 * (i % 4)) : 0u;
    }
  }
}

// Lane q of a group of 16 holds logical channels 8q.. = 32t + 8i (t = q / 4, i = q % 4): word h belongs at byte 32i + 16h + 4t. Lanes 0..7 of
// the group collect 16-byte chunk 2i + h = lane from four lanes.
__device__ __forceinline__ uint4 physical_chunk(const uint32_t (&words)[2], int lane) {
  const int chunk = lane % 8, group = lane & 16, i = chunk / 2, h = chunk % 2;
  uint32_t part[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t first = __shfl_sync(0xFFFFFFFFu, words[0], group + 4 * t + i);
    const uint32_t second = __shfl_sync(0xFFFFFFFFu, words[1], group + 4 * t + i);
    part[t] = h == 0 ? first : second;
  }
  return make_uint4(part[0], part[1], part[2], part[3]);
}

}  // namespace monomoe::cuda
