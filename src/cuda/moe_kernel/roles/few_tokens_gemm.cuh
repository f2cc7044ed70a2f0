// The main loop for up to 64 tokens: [256 weight rows x K] times a block of tokens, weights as WGMMA's M operand, FP4 expanded in registers. A
// warpgroup has a half of the tile, two blocks of 64 rows; the fp32 sums stay in registers. Order along K and roundings are the contract's.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"
#include "cuda/moe_kernel/roles/weights_to_registers.cuh"

namespace monomoe::cuda {

inline constexpr int kRowBlocks = 2;  // of 64 rows, per warpgroup

// Of a warp, on a slot of weights: in tasks of more tokens all math warps read it.
inline constexpr int kWeightArrivals = kMathWarpgroups;

template <int kTokens>
struct Sums {
  float value[kRowBlocks][kTokens / 2];
};

__device__ __forceinline__ void pin(uint32_t (&d)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(d[i])::"memory");
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

// A warpgroup's half of the tile over all of K, a K block and a block of rows at a time. FP4: while the WGMMAs of one block of rows run, the next one is
// expanded, the codes after it are on their way, and between the two the tables of their scales are looked up. The body is short on purpose: bodies of several
// K blocks, or with partial sums for both blocks of rows, wait for instructions or for registers (docs/kernel.md).
template <class C, int kTokens>
struct FewTokensLoop {
  SharedStorage<C>& smem;
  MathRings<C>& rings;
  Sums<kTokens>& sums;
  uint32_t halves;
  int thread, lane;
  RingCursor<C::kWeightSlots> slot;  // of the present K block
  BlockScales blocks;                // FP8: of the present K block
  float row_scale[2];                // FP8: of rows g (gate) and g + 8 (up)
  float partial[kTokens / 2];
  float2 scale[kTokens / 8];   // of this thread's tokens: 8j + 2t and + 1
  uint32_t a[kRowBlocks][16];  // FP4, as all that follows
  PackedCodes codes[kRowBlocks];
  ScaleTables tables;

  __device__ __forceinline__ void load(RingCursor<C::kWeightSlots> from, int m) { codes[m] = load_codes(smem.weights_at(from.slot), m, thread); }
  __device__ __forceinline__ void look_up(int m) { tables = look_up_tables(smem.tables_at(), codes[m].scales); }
  // Not before the WGMMAs that read the old values have ended: the first pin keeps those where they are until here.
  __device__ __forceinline__ void expand(int m) {
    pin(a[m]);
    expand_fragment<Shift::kByMultiplier>(a[m], codes[m], tables);
    pin(a[m]);
  }

  // What comes before the first K block's WGMMAs.
  __device__ __forceinline__ void begin() {
    wait_barrier(smem.weights_full_at(slot.slot), slot.phase);
    if constexpr (C::is_fp8) {
      blocks.load(row_scale);
    } else {
      load(slot, 0);
      load(slot, 1);
      look_up(0);
      expand(0);
      look_up(1);
    }
  }

  // One block of rows' WGMMAs, from zero.
  __device__ __forceinline__ void issue(int m, uint32_t tokens_low) {
    const uint64_t rows = ptx::matrix_descriptor_of(ptx::descriptor_low(smem.weights_at(slot.slot)) + m * (64 * 128 / 16));  // FP8
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t tokens = ptx::matrix_descriptor_of(tokens_low + 2 * i);
      if constexpr (C::is_fp8) ptx::Wgmma<kTokens>::shared(partial, rows + 2 * i, tokens, i > 0);
      else ptx::Wgmma<kTokens>::registers(partial, a[m][4 * i], a[m][4 * i + 1], a[m][4 * i + 2], a[m][4 * i + 3], tokens, i > 0);
    }
    ptx::wgmma_commit();
  }

  // Waits for the WGMMAs. sum = fma(partial, token scale [* block scale], sum).
  __device__ __forceinline__ void promote(int m) {
    ptx::wgmma_wait<0>();
    pin(partial);
    float(&sum)[kTokens / 2] = sums.value[m];
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

  // tokens_low: of the tokens' descriptor. scales: shared address of this thread's first token's. Whether the next K block's weights are here is asked before the WGMMAs, and the
  // answer needed after them: it takes 75 cycles. After the last K block its own codes are loaded and expanded once more, for nothing: cheaper than branches.
  __device__ __forceinline__ void k_block(uint32_t tokens_low, uint32_t scales, bool more) {
    tokens_low = ptx::uniform(tokens_low);
    auto next = slot;
    next.advance(more ? halves : 0);
    const bool here = ptx::mbarrier_test_wait(smem.weights_full_at(next.slot), next.phase);
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      const uint32_t place = scales + j * 8 * kTokenScaleBytes;
      scale[j] = make_float2(__uint_as_float(ptx::load_shared_4(place)), __uint_as_float(ptx::load_shared_4(place + kTokenScaleBytes)));
    }
    issue(0, tokens_low);
    if constexpr (C::is_fp8) rings.template release_converged<kWeightArrivals>(lane);
    else expand(1);
    wait_barrier_asked(here, smem.weights_full_at(next.slot), next.phase);
    if constexpr (!C::is_fp8) load(next, 0);
    promote(0);
    issue(1, tokens_low);
    rings.held_weights = smem.weights_empty_at(slot.slot);
    if constexpr (!C::is_fp8) {
      look_up(0);
      rings.template release_converged<kWeightArrivals>(lane);  // what these WGMMAs multiply was made of the slot's last codes
      load(next, 1);
      expand(0);
      look_up(1);
    }
    promote(1);
    if constexpr (C::is_fp8) {
      blocks.gate += more;
      blocks.load(row_scale);
    }
    slot = next;
  }
};

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
  if (warpgroup >= halves) return pass_tokens(smem, rings, k_blocks, gathered, lane);
  FewTokensLoop<C, kTokens> loop{smem, rings, sums, static_cast<uint32_t>(halves), thread, lane, slot};
  if constexpr (C::is_fp8) loop.blocks = block_scales(params, task, warpgroup);
  loop.begin();
  wait_tokens(smem, rings, gathered);
  trace_time(params, smem, TraceTime::kDataHere);
  for (int left = k_blocks;;) {
    auto next = rings.tokens;
    next.advance();
    const bool here = ptx::mbarrier_test_wait(smem.tokens_full_at(next.slot), next.phase);
    uint32_t tokens_low = ptx::descriptor_low(smem.tokens_at(rings.tokens.slot));
    uint32_t scales = smem.scales_at(rings.tokens.slot) + lane % 4 * 2 * kTokenScaleBytes;
    const int end = max(left - kUnits, 0);
#pragma unroll 1
    do {
      --left;
      loop.k_block(tokens_low, scales, left > 0);
      tokens_low += kUnitBytes / 16;
      scales += 4;
    } while (left > end);
    rings.held_tokens = smem.tokens_empty_at(rings.tokens.slot);
    rings.tokens = next;
    if (left == 0) break;
    wait_barrier_asked(here, smem.tokens_full_at(next.slot), next.phase);
    ptx::fence_proxy_async_smem();  // for gathered rows; a branch around it would take as long
  }
}

}  // namespace monomoe::cuda
