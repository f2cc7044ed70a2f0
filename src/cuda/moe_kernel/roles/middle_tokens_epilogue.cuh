// What the math warps do with a half's finished sums of up to 128 tokens: they hand them over to the side warps and go on with the other half. A slot has twice the tokens
// that it has of a whole tile.
#pragma once

#include "cuda/moe_kernel/roles/few_tokens_epilogue.cuh"
#include "cuda/moe_kernel/roles/middle_tokens_gemm.cuh"

namespace monomoe::cuda {

inline constexpr int kGemm1HalfTokens = 2 * kGemm1ResultTokens, kGemm2HalfTokens = 2 * kGemm2ResultTokens;

// This thread's values of eight tokens; `first` is a multiple of eight.
template <int kPart>
__device__ __forceinline__ const float* of_eight_tokens(const PartSums<kPart>& sums, int first) {
  return &sums.value[first / kPart][first % kPart / 2];
}

// Rows 16w + g and + 8 of this warpgroup's block are gate and up of channel 32 * warpgroup + 8w + g of the half's 64.
template <class C, int kPart>
__device__ __forceinline__ void middle_tokens_gemm1_epilogue(SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, const PartSums<kPart>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32;
  const int channel = 32 * warpgroup + thread / 32 * 8 + lane / 4;
  hand_over<kParts * kPart, kGemm1HalfTokens>(smem, task, rings, lane, [&](uint32_t slot, int first) {
#pragma unroll
    for (int token = 0; token < kGemm1HalfTokens && first + token < kParts * kPart; token += 8) {
      const float* s = of_eight_tokens(sums, first + token);
      const uint32_t place = slot + gate_up_place<kHalfRows>(token + lane % 4 * 2, channel);
      ptx::store_shared_8(place, s[0], s[2]);
      ptx::store_shared_8(place + kHalfRows * 4, s[1], s[3]);
    }
  });
}

template <class C, int kPart>
__device__ __forceinline__ void middle_tokens_gemm2_epilogue(SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, const PartSums<kPart>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32;
  const int row = 64 * warpgroup + 16 * (thread / 32);
  hand_over<kParts * kPart, kGemm2HalfTokens>(smem, task, rings, lane, [&](uint32_t slot, int first) {
#pragma unroll
    for (int token = 0; token < kGemm2HalfTokens && first + token < kParts * kPart; token += 8) {
      stage_eight_tokens<kHalfRows>(slot + token * (kHalfRows * 2), row, of_eight_tokens(sums, first + token), task.multiplier[0], lane);
    }
  });
}

}  // namespace monomoe::cuda
