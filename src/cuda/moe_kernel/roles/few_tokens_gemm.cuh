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

// A warpgroup's half of the tile over all of K. Both blocks of 64 rows have partial sums of their own, so one's promotion and expansion run under the
// other's WGMMAs, of this K block or of the next one.
template <class C, int kTokens>
struct FewTokensLoop {
  // FP4: the fragments of a K block are loaded as soon as those before it are expanded, if there are registers for that.
  static constexpr bool kLoadsEarly = !C::is_fp8 && kTokens <= 48;
  // K blocks whose WGMMAs follow each other without a gap. There must be a gap at the end of a loop's body: ptxas puts WGMMAs that are under way there
  // one after the other (C7514).
  static constexpr int kPipelined = C::is_fp8 || kTokens <= 32 ? 4 : kTokens <= 48 ? 2 : 1;
  static_assert(kUnits % kPipelined == 0);

  SharedStorage<C>& smem;
  MathRings<C>& rings;
  Sums<kTokens>& sums;
  uint32_t halves;
  int thread, lane;
  RingCursor<C::kWeightSlots> slot;  // FP4 with early loads: of the weights that `packed` has; otherwise of the present K block's
  BlockScales blocks;
  float row_scale[2], next_scale[2];
  float partial[kRowBlocks][kTokens / 2];
  uint32_t a[kRowBlocks][16];
  PackedFragment packed[kRowBlocks];
  float2 scale[kTokens / 8];

  __device__ __forceinline__ void await_weights() { wait_barrier(smem.weights_full_at(slot.slot), slot.phase); }
  __device__ __forceinline__ uint32_t slot_empty() const { return smem.weights_empty_at(slot.slot); }
  __device__ __forceinline__ void load(int m) {
    if constexpr (!C::is_fp8) packed[m] = load_fragment(smem.tables_at(), smem.weights_at(slot.slot), m, thread);
  }
  // Not before the WGMMAs that read the old values have ended: the first pin keeps those where they are until here.
  __device__ __forceinline__ void expand(int m) {
    if constexpr (!C::is_fp8) {
      pin(a[m]);
      expand_fragment<Shift::kByMultiplier>(a[m], packed[m]);
      pin(a[m]);
    }
  }
  // FP4 weights are in registers once they are expanded: the slot goes back before they are multiplied. The arrival hangs on the last values that were
  // loaded (e4m3 weights are never NaN), so that no load can be overtaken.
  __device__ __forceinline__ void release_expanded(uint32_t empty) {
    if constexpr (!C::is_fp8) {
      __syncwarp();
      if (lane == 0 && a[0][15] != 0x7F7F7F7Fu && a[1][0] != 0x7F7F7F7Fu && a[1][15] != 0x7F7F7F7Fu) ptx::mbarrier_arrive(empty);
    }
  }
  __device__ __forceinline__ void next_block_scales(bool more) {
    if constexpr (C::is_fp8) {
      blocks.gate += more;
      blocks.up += more;
      next_scale[0] = __ldg(blocks.gate);
      next_scale[1] = __ldg(blocks.up);
    }
  }
  __device__ __forceinline__ uint32_t rows_low() const {
    return C::is_fp8 ? ptx::descriptor_low(__shfl_sync(0xFFFFFFFFu, smem.weights_at(slot.slot), 0)) : 0;
  }
  __device__ __forceinline__ void issue(int m, uint32_t rows, uint32_t tokens_low) {
    uint64_t tokens[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) tokens[i] = ptx::matrix_descriptor_of(tokens_low + 2 * i);
    issue_block<C, kTokens>(partial[m], a[m], ptx::matrix_descriptor_of(rows + m * (64 * 128 / 16)), tokens);
  }

  // Brings the first K block's weights.
  __device__ __forceinline__ void begin(int k_blocks) {
    await_weights();
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      load(m);
      expand(m);
    }
    release_expanded(slot_empty());
    next_block_scales(false);
    if constexpr (kLoadsEarly) {
      slot.advance(halves);
      if (k_blocks > 1) await_weights();
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) load(m);
    }
  }

  // kBlocks K blocks of the present stage of tokens, from `unit` on; `follow` more come after them. What lies past the last K block is loaded and expanded
  // for nothing: cheaper than a branch each time.
  template <int kBlocks>
  __device__ __forceinline__ void multiply(int unit, int follow) {
    uint32_t tokens_low = __shfl_sync(0xFFFFFFFFu, ptx::descriptor_low(smem.tokens_at(rings.tokens.slot)) + unit * (kUnitBytes / 16), 0);
    uint32_t scales = smem.scales_at(rings.tokens.slot) + unit * (kSubtileTokens * 4) + lane % 4 * 8;
    uint32_t rows = rows_low();
    issue(0, rows, tokens_low);
    issue(1, rows, tokens_low);
    rings.release(lane);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const bool last = block == kBlocks - 1;
      const int after = kBlocks - 1 - block + follow;
      load_token_scales<kTokens>(scale, scales);
      row_scale[0] = next_scale[0];
      row_scale[1] = next_scale[1];
      next_block_scales(after > 0);
      const uint32_t present_empty = slot_empty();
      slot.advance(halves);
      if (after > (kLoadsEarly ? 1 : 0)) await_weights();
      rows = rows_low();
      tokens_low += kUnitBytes / 16;
      scales += kSubtileTokens * 4;
      if (!kLoadsEarly) load(0);
      ptx::wgmma_wait<1>();
      promote<C, kTokens>(sums.value[0], partial[0], scale, row_scale);
      expand(0);
      if (!last) issue(0, rows, tokens_low);
      if (kLoadsEarly) load(0);
      if (last) ptx::wgmma_wait<0>();
      else ptx::wgmma_wait<1>();
      promote<C, kTokens>(sums.value[1], partial[1], scale, row_scale);
      if (!kLoadsEarly) load(1);
      expand(1);
      if (after > 0) release_expanded(kLoadsEarly ? present_empty : slot_empty());
      if (!last) issue(1, rows, tokens_low);
      if (kLoadsEarly) load(1);
      if constexpr (C::is_fp8) {
        rings.held_weights = present_empty;
        if (!last) rings.release(lane);
      }
    }
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
  rings.arrivals = C::is_fp8 ? kMathWarpgroups : 1;
  if (warpgroup >= halves) return pass_tokens(smem, rings, k_blocks, gathered, lane);
  FewTokensLoop<C, kTokens> loop{smem, rings, sums, static_cast<uint32_t>(halves), thread, lane, slot};
  if constexpr (C::is_fp8) loop.blocks = block_scales(params, task, warpgroup);
  loop.begin(k_blocks);
  for (int left = k_blocks; left > 0; left -= kUnits) {
    wait_tokens(smem, rings, gathered);
    if (left == k_blocks) trace_time(params, smem, TraceTime::kDataHere);
    constexpr int kPipelined = FewTokensLoop<C, kTokens>::kPipelined;
    if (left >= kUnits) {
#pragma unroll 1
      for (int unit = 0; unit < kUnits; unit += kPipelined) loop.template multiply<kPipelined>(unit, left - unit - kPipelined);
    } else {
#pragma unroll 1
      for (int unit = 0; unit < left; ++unit) loop.template multiply<1>(unit, left - unit - 1);
    }
    rings.held_tokens = smem.tokens_empty_at(rings.tokens.slot);
    rings.tokens.advance();
  }
}

}  // namespace monomoe::cuda
