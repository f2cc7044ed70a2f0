// The main loop for up to 64 tokens: [256 weight rows x K] times a block of tokens, weights as WGMMA's M operand, FP4 expanded in registers. A
// warpgroup has a half of the tile, two blocks of 64 rows; the fp32 sums stay in registers. Order along K and roundings are the contract's.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"
#include "cuda/moe_kernel/roles/weights_to_registers.cuh"

namespace monomoe::cuda {

inline constexpr int kRowBlocks = 2;  // of 64 rows, per warpgroup

template <int kTokens>
struct Sums {
  float value[kRowBlocks][kTokens / 2];
};

__device__ __forceinline__ void pin(uint32_t (&d)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// One K block's WGMMAs of one block of 64 rows, from zero.
template <class C, int kTokens>
__device__ __forceinline__ void issue_block(float (&partial)[kTokens / 2], const uint32_t (&a)[16], uint64_t rows, const uint64_t (&tokens)[4]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (C::is_fp8) ptx::Wgmma<kTokens>::shared(partial, rows + 2 * i, tokens[i], i > 0);
    else ptx::Wgmma<kTokens>::registers(partial, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], tokens[i], i > 0);
  }
  ptx::wgmma_commit();
}

// Scales of this thread's tokens: 8j + 2t and + 1.
template <int kTokens>
__device__ __forceinline__ void load_token_scales(float2 (&scale)[kTokens / 8], uint32_t scales) {
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const uint2 bits = ptx::load_shared_8(scales + j * 32);
    scale[j] = make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
  }
}

// The promotion: sum = fma(partial, token scale [* block scale], sum). row_scale: of rows g (gate) and g + 8 (up).
template <class C, int kTokens>
__device__ __forceinline__ void promote(float (&sum)[kTokens / 2], float (&partial)[kTokens / 2], const float2 (&scale)[kTokens / 8],
                                        const float (&row_scale)[2]) {
  pin(partial);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const float2 first = C::is_fp8 ? make_float2(mul_rn(scale[j].x, row_scale[0]), mul_rn(scale[j].y, row_scale[0])) : scale[j];
    const float2 second = C::is_fp8 ? make_float2(mul_rn(scale[j].x, row_scale[1]), mul_rn(scale[j].y, row_scale[1])) : scale[j];
    sum[4 * j] = fma_rn(partial[4 * j], first.x, sum[4 * j]);
    sum[4 * j + 1] = fma_rn(partial[4 * j + 1], first.y, sum[4 * j + 1]);
    sum[4 * j + 2] = fma_rn(partial[4 * j + 2], second.x, sum[4 * j + 2]);
    sum[4 * j + 3] = fma_rn(partial[4 * j + 3], second.y, sum[4 * j + 3]);
  }
}

// A warpgroup without rows (the second one of a tile that has one half) takes part in the ring only.
template <class C>
__device__ __forceinline__ void pass_tokens(SharedStorage<C>& smem, MathRings<C>& rings, int k_blocks, bool gathered, int lane) {
  for (int k_block = 0; k_block < k_blocks; k_block += kUnits) {
    rings.release(lane);
    wait_tokens(smem, rings, gathered);
    rings.held_tokens = smem.tokens_empty_at(rings.tokens.slot);
    rings.tokens.advance();
  }
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_sums(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128;
  const bool gathered = !is_down(task);
  const auto [k_blocks, halves] = task_extent(params, task);
  const int lane = thread % 32;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int j = 0; j < kTokens / 2; ++j) sums.value[m][j] = 0.0f;
  }
  auto slot = rings.weights;  // of this warpgroup's halves
  slot.skip(warpgroup);
  rings.weights.skip(k_blocks * halves);
  rings.arrivals = C::is_fp8 ? kMathWarpgroups : 1;
  if (warpgroup >= halves) return pass_tokens(smem, rings, k_blocks, gathered, lane);
  BlockScales blocks;
  float row_scale[2] = {1.0f, 1.0f}, next_scale[2] = {1.0f, 1.0f};
  if constexpr (C::is_fp8) {
    blocks = block_scales(params, task, warpgroup);
    next_scale[0] = __ldg(blocks.gate);
    next_scale[1] = __ldg(blocks.up);
  }
  // Both blocks of rows have partial sums of their own, so one's promotion and expansion run under the other's WGMMAs.
  float partial[kRowBlocks][kTokens / 2];
  uint32_t a[kRowBlocks][16];
  // FP4: the fragments of the next K block are loaded while this one's WGMMAs run; of both blocks of rows if there are registers for that.
  constexpr int kAhead = C::is_fp8 ? 0 : kTokens <= 48 ? 2 : 1;
  PackedFragment packed[kRowBlocks];
  const auto load = [&](int m) {
    if constexpr (!C::is_fp8) packed[m] = load_fragment(smem.tables_at(), smem.weights_at(slot.slot), m, thread);
  };
  // Not before the WGMMAs that read the old values have ended: the first pin keeps those where they are until here.
  const auto expand = [&](int m) {
    if constexpr (!C::is_fp8) {
      pin(a[m]);
      expand_fragment<Shift::kByMultiplier>(a[m], packed[m]);
      pin(a[m]);
    }
  };
  // FP4 weights are in registers once they are expanded: the slot goes back before they are multiplied. The arrival hangs on the last values that were
  // loaded (e4m3 weights are never NaN), so that no load can be overtaken.
  const auto release_expanded = [&] {
    if constexpr (!C::is_fp8) {
      __syncwarp();
      if (lane == 0 && a[0][15] != 0x7F7F7F7Fu && a[1][0] != 0x7F7F7F7Fu && a[1][15] != 0x7F7F7F7Fu) {
        ptx::mbarrier_arrive(smem.weights_empty_at(slot.slot));
      }
    }
  };
  wait_barrier(smem.weights_full_at(slot.slot), slot.phase);
  wait_tokens(smem, rings, gathered);
  trace_time(params, smem, TraceTime::kDataHere);
  if constexpr (!C::is_fp8) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      load(m);
      expand_fragment<Shift::kByMultiplier>(a[m], packed[m]);
      pin(a[m]);
    }
  }
  release_expanded();
  // What changes from one K block to the next is kept, not made anew: with few tokens the integer pipe is what the loop is bound by.
  const auto scales_of_thread = [&] { return smem.scales_at(rings.tokens.slot) + lane % 4 * 8; };
  uint32_t tokens_low = ptx::descriptor_low(smem.tokens_at(rings.tokens.slot)), scales = scales_of_thread();
  int units = kUnits;  // left in the stage
  for (int left = k_blocks; left > 0; --left) {
    const bool more = left > 1;
    uint64_t tokens[4];
    const uint32_t low = C::is_fp8 ? __shfl_sync(0xFFFFFFFFu, tokens_low, 0) : tokens_low;
#pragma unroll
    for (int i = 0; i < 4; ++i) tokens[i] = ptx::matrix_descriptor_of(low + 2 * i);
    const uint64_t rows = C::is_fp8 ? ptx::uniform_descriptor(smem.weights_at(slot.slot)) : 0;
    const uint32_t weights_empty = smem.weights_empty_at(slot.slot);
    float2 scale[kTokens / 8];
    if constexpr (C::is_fp8) {
      row_scale[0] = next_scale[0];
      row_scale[1] = next_scale[1];
      const int ahead = more ? k_blocks - left + 1 : k_blocks - left;
      next_scale[0] = __ldg(blocks.gate + ahead);
      next_scale[1] = __ldg(blocks.up + ahead);
    }
    issue_block<C, kTokens>(partial[0], a[0], rows, tokens);
    issue_block<C, kTokens>(partial[1], a[1], rows + 64 * 128 / 16, tokens);
    rings.release(lane);
    load_token_scales<kTokens>(scale, scales);
    // The next K block, and what can be done of it, while WGMMAs of this one run.
    slot.advance(static_cast<uint32_t>(halves));
    const bool stage_ends = --units == 0 || !more;
    if (stage_ends) {
      rings.held_tokens = smem.tokens_empty_at(rings.tokens.slot);
      rings.tokens.advance();
      units = kUnits;
      tokens_low = ptx::descriptor_low(smem.tokens_at(rings.tokens.slot));
      scales = scales_of_thread();
    } else {
      tokens_low += kUnitBytes / 16;
      scales += kSubtileTokens * 4;
    }
    // After the last one this expands what happens to lie in the next slot, for nothing: cheaper than a branch each time.
    if (more) wait_barrier(smem.weights_full_at(slot.slot), slot.phase);
#pragma unroll
    for (int m = 0; m < kAhead; ++m) load(m);
    ptx::wgmma_wait<1>();
    promote<C, kTokens>(sums.value[0], partial[0], scale, row_scale);
    expand(0);
    ptx::wgmma_wait<0>();
    promote<C, kTokens>(sums.value[1], partial[1], scale, row_scale);
    if (kAhead < kRowBlocks) load(1);
    expand(1);
    if (more) {
      release_expanded();
      if (stage_ends) wait_tokens(smem, rings, gathered);
    }
    if constexpr (C::is_fp8) rings.held_weights = weights_empty;
  }
}

}  // namespace monomoe::cuda
