// The main loop where tokens are M (BlockForm): up to 256 tokens times a half of the tile (128 weight rows), tokens as WGMMA's M operand, both operands
// in shared memory. Subtiles of 64 tokens go to the warpgroups in turn; a thread holds two tokens of each. Order along K and roundings are the
// contract's, as in few_tokens_gemm.cuh.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"

namespace monomoe::cuda {

inline constexpr int kColumns = kHalfRows;           // of the product: weight rows
inline constexpr int kColumnSums = kColumns / 2;     // a thread's share of [64 x 128]: 4j + 2r + b is token g + 8r, column 8j + 2t + b

template <int kSubtiles>
struct TokenSums {
  float value[kSubtiles][kColumnSums];
};

// The half's weights as a tile of [128 rows x 128 B]: FP8 as it came, FP4 expanded.
template <class C>
__device__ __forceinline__ void wait_weights_tile(SharedStorage<C>& smem, const MathRings<C>& rings) {
  if constexpr (C::is_fp8) wait_barrier(smem.weights_full_at(rings.weights.slot), rings.weights.phase);
  else wait_barrier(smem.expanded_full_at(rings.expanded.slot), rings.expanded.phase);
}
template <class C>
__device__ __forceinline__ uint32_t weights_tile(SharedStorage<C>& smem, const MathRings<C>& rings) {
  if constexpr (C::is_fp8) return smem.weights_at(rings.weights.slot);
  else return smem.expanded_at(rings.expanded.slot);
}
template <class C>
__device__ __forceinline__ uint32_t weights_tile_empty(SharedStorage<C>& smem, const MathRings<C>& rings) {
  if constexpr (C::is_fp8) return smem.weights_empty_at(rings.weights.slot);
  else return smem.expanded_empty_at(rings.expanded.slot);
}
template <class C>
__device__ __forceinline__ void advance_both(MathRings<C>& rings) {
  rings.tokens.advance();
  if constexpr (C::is_fp8) rings.weights.advance();
  else rings.expanded.advance();
}

// sum = fma(partial, token scale [* block scale], sum). scale[r][side]: token g + 8r, gate (even j) or up (odd j) columns.
template <class C>
__device__ __forceinline__ void promote_tokens(float (&sum)[kColumnSums], float (&partial)[kColumnSums], const float (&scale)[2][2]) {
  pin(partial);
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int side = C::is_fp8 ? j % 2 : 0;
    sum[4 * j] = fma_rn(partial[4 * j], scale[0][side], sum[4 * j]);
    sum[4 * j + 1] = fma_rn(partial[4 * j + 1], scale[0][side], sum[4 * j + 1]);
    sum[4 * j + 2] = fma_rn(partial[4 * j + 2], scale[1][side], sum[4 * j + 2]);
    sum[4 * j + 3] = fma_rn(partial[4 * j + 3], scale[1][side], sum[4 * j + 3]);
  }
}

// The WGMMAs of one subtile and K block, from zero.
__device__ __forceinline__ void issue_tokens(float (&partial)[kColumnSums], uint64_t tokens, uint64_t weights) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::Wgmma<kColumns>::shared(partial, tokens + 2 * i, weights + 2 * i, i > 0);
  ptx::wgmma_commit();
}

// Scales of a thread's two tokens, times the block's. scales: shared address of the first one's.
template <class C>
__device__ __forceinline__ void token_scales(float (&scale)[2][2], uint32_t scales, const float (&block_scale)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float token = __uint_as_float(ptx::load_shared_4(scales + 8 * r * 4));
    scale[r][0] = C::is_fp8 ? mul_rn(token, block_scale[0]) : token;
    scale[r][1] = C::is_fp8 ? mul_rn(token, block_scale[1]) : token;
  }
}

// FP8, up to 128 tokens: a warpgroup has one subtile, and room for the partial sums of two K blocks, which are a stage: one's are promoted under the other's WGMMAs.
template <class C>
__device__ __forceinline__ void paired_sums(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int half, MathRings<C>& rings,
                                            float (&sum)[kColumnSums], int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32;
  const int k_blocks = task_extent(params, task).k_blocks;
  BlockScales blocks = block_scales(params, task, half);
#pragma unroll
  for (int j = 0; j < kColumnSums; ++j) sum[j] = 0.0f;
  const uint32_t own_scales = (warpgroup * kSubtileTokens + thread / 32 * 16 + lane / 4) * 4;
  float partial[2][kColumnSums];
  wait_weights_tile(smem, rings);
  wait_tokens(smem, rings, false);
  if (half == 0) trace_time(params, smem, TraceTime::kDataHere);
  int left = k_blocks;
  for (; left > 1; left -= 2) {
    const uint32_t stage = rings.tokens.slot;
    const uint64_t tokens = ptx::uniform_descriptor(smem.tokens_at(stage) + warpgroup * kUnitBytes);
    const uint32_t scales = smem.scales_at(stage) + own_scales;
    float block_scale[2], scale[2][2];
    issue_tokens(partial[0], tokens, ptx::uniform_descriptor(weights_tile(smem, rings)));
    rings.release(lane);
    blocks.load(block_scale);
    ++blocks.gate;
    token_scales<C>(scale, scales, block_scale);
    const uint32_t first_empty = weights_tile_empty(smem, rings);
    rings.weights.advance();
    wait_weights_tile(smem, rings);
    issue_tokens(partial[1], tokens + kMathWarpgroups * kUnitBytes / 16, ptx::uniform_descriptor(weights_tile(smem, rings)));
    ptx::wgmma_wait<1>();
    promote_tokens<C>(sum, partial[0], scale);
    rings.held_weights = first_empty;
    rings.release(lane);
    blocks.load(block_scale);
    ++blocks.gate;
    token_scales<C>(scale, scales + kMiddleTokens * 4, block_scale);
    rings.held_weights = weights_tile_empty(smem, rings);
    rings.held_tokens = smem.tokens_empty_at(stage);
    rings.weights.advance();
    rings.tokens.advance();
    if (left > 2) {
      wait_weights_tile(smem, rings);
      wait_tokens(smem, rings, false);
    }
    ptx::wgmma_wait<0>();
    promote_tokens<C>(sum, partial[1], scale);
  }
  if (left > 0) {
    const uint32_t stage = rings.tokens.slot;
    float block_scale[2], scale[2][2];
    issue_tokens(partial[0], ptx::uniform_descriptor(smem.tokens_at(stage) + warpgroup * kUnitBytes), ptx::uniform_descriptor(weights_tile(smem, rings)));
    rings.release(lane);
    blocks.load(block_scale);
    token_scales<C>(scale, smem.scales_at(stage) + own_scales, block_scale);
    ptx::wgmma_wait<0>();
    promote_tokens<C>(sum, partial[0], scale);
    rings.held_weights = weights_tile_empty(smem, rings);
    rings.held_tokens = smem.tokens_empty_at(stage);
    rings.weights.advance();
    rings.tokens.advance();
  }
}

template <class C, int kSubtiles, bool kPairs>
__device__ __forceinline__ void many_tokens_sums(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int half, MathRings<C>& rings,
                                                 TokenSums<kSubtiles>& sums, int warpgroup) {
  if constexpr (kPairs) return paired_sums(params, smem, task, half, rings, sums.value[0], warpgroup);
  const int thread = ptx::thread_index() % 128;
  const int k_blocks = task_extent(params, task).k_blocks;
  const int lane = thread % 32;
#pragma unroll
  for (int m = 0; m < kSubtiles; ++m) {
#pragma unroll
    for (int j = 0; j < kColumnSums; ++j) sums.value[m][j] = 0.0f;
  }
  BlockScales blocks;
  if constexpr (C::is_fp8) blocks = block_scales(params, task, half);
  float partial[kColumnSums];
  wait_weights_tile(smem, rings);
  wait_tokens(smem, rings, false);
  if (half == 0) trace_time(params, smem, TraceTime::kDataHere);
  for (int left = k_blocks; left > 0; --left) {
    const uint32_t stage = rings.tokens.slot;
    const uint64_t tokens = ptx::uniform_descriptor(smem.tokens_at(stage) + warpgroup * kUnitBytes);
    const uint64_t weights = ptx::uniform_descriptor(weights_tile(smem, rings));
    const uint32_t scales = smem.scales_at(stage) + (warpgroup * kSubtileTokens + thread / 32 * 16 + lane / 4) * 4;
    const uint32_t weights_empty = weights_tile_empty(smem, rings), tokens_empty = smem.tokens_empty_at(stage);
    float block_scale[2] = {1.0f, 1.0f};
#pragma unroll
    for (int m = 0; m < kSubtiles; ++m) {
      issue_tokens(partial, tokens + m * (kMathWarpgroups * kUnitBytes / 16), weights);
      if (m == 0) {
        rings.release(lane);
        if constexpr (C::is_fp8) {  // under the WGMMAs; kept from one K block to the next they would cost registers
          blocks.load(block_scale);
          ++blocks.gate;
        }
      }
      float scale[2][2];
      token_scales<C>(scale, scales + m * kMathWarpgroups * kSubtileTokens * 4, block_scale);
      if (m == kSubtiles - 1) {  // the next stage is awaited while the last WGMMAs of this one run
        advance_both(rings);
        if (left > 1) {
          wait_weights_tile(smem, rings);
          wait_tokens(smem, rings, false);
        }
      }
      ptx::wgmma_wait<0>();
      promote_tokens<C>(sums.value[m], partial, scale);
    }
    rings.held_weights = weights_empty;
    rings.held_tokens = tokens_empty;
  }
}

}  // namespace monomoe::cuda
