// What the math warps do with finished sums of few tokens: they hand them over to the side warps and go on to the next task. A thread holds, per block of 64 rows:
// rows 16w + g (sums 0, 1) and + 8 (sums 2, 3) of tokens 8j + 2t and + 1. In GEMM1 these are gate and up of channel 64 * warpgroup + 32m + 8w + g.
#pragma once

#include "cuda/moe_kernel/roles/few_tokens_gemm.cuh"

namespace monomoe::cuda {

// Slot by slot of kSlotTokens, as far as there are tokens. write(slot address, first token) writes this thread's part.
template <int kTokens, int kSlotTokens, class C, class Write>
__device__ __forceinline__ void hand_over(SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, int lane, const Write& write) {
#pragma unroll
  for (int first = 0; first < kTokens; first += kSlotTokens) {
    if (first >= task.count) break;
    const uint32_t slot = rings.results.slot();
    wait_barrier(smem.results_empty_at(slot), rings.results.phase());
    write(smem.results_at(slot), first);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.results_full_at(slot));
    rings.results.advance();
  }
}

// Where gate and up of a channel lie in a slot of GEMM1. What 16 lanes write at once and what 8 lanes read at once lies in different banks.
template <int kRows = kTileRows>
__device__ __forceinline__ uint32_t gate_up_place(int token, int channel) {
  const int unit = channel ^ (token / 2 & 3) << 2 ^ (channel >> 5 & 1) << 1 ^ (channel >> 6 & 1) << 3;
  return static_cast<uint32_t>(token * (kRows * 4) + unit * 8);
}

// Before few tokens' results are handed over. FP4 expands weights of many tokens in the same bytes: the other warpgroup may still multiply the last of them.
template <class C>
__device__ __forceinline__ void begin_few_results(MathRings<C>& rings) {
  if (rings.last == MathRings<C>::Last::kMany) math_barrier();
  rings.last = MathRings<C>::Last::kFew;
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm1_epilogue(SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32, g = lane / 4, t = lane % 4;
  const int channel = 64 * warpgroup + thread / 32 * 8 + g;
  begin_few_results(rings);
  hand_over<kTokens, kGemm1ResultTokens>(smem, task, rings, lane, [&](uint32_t slot, int first) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const float* s = &sums.value[m][first / 2];
      const uint32_t place = slot + gate_up_place(2 * t, channel + 32 * m);
      ptx::store_shared_8(place, s[0], s[2]);
      ptx::store_shared_8(place + kTileRows * 4, s[1], s[3]);
    }
  });
  rings.template release<kWeightArrivals>(lane);
}

// Eight tokens of this thread's rows into the slot, transposed to [token][row]; 16-byte chunks swizzled by token.
template <int kRows = kTileRows>
__device__ __forceinline__ void stage_eight_tokens(uint32_t slot, int row, const float* s, float multiplier, int lane) {
  const uint32_t first = ptx::encode_bf16_pair(mul_rn(s[0], multiplier), mul_rn(s[1], multiplier));
  const uint32_t second = ptx::encode_bf16_pair(mul_rn(s[2], multiplier), mul_rn(s[3], multiplier));
  const int token = lane % 8, chunk = row / 8 + (lane / 8) % 2;
  ptx::store_matrices_transposed(slot + token * (kRows * 2) + ((chunk ^ token) << 4), first, second);
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm2_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                          Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32;
  const bool has_rows = warpgroup < task_extent(params, task).halves;
  const int row = kHalfRows * warpgroup + 16 * (thread / 32);
  begin_few_results(rings);
  hand_over<kTokens, kGemm2ResultTokens>(smem, task, rings, lane, [&](uint32_t slot, int first) {
    if (!has_rows) return;
#pragma unroll
    for (int token = 0; token < kGemm2ResultTokens && first + token < kTokens; token += 8) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        stage_eight_tokens(slot + token * (kTileRows * 2), row + 64 * m, &sums.value[m][(first + token) / 2], task.multiplier[0], lane);
      }
    }
  });
  rings.template release<kWeightArrivals>(lane);
}

}  // namespace monomoe::cuda
