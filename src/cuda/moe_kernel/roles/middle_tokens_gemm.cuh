// The main loop for 65 to 128 tokens and FP4 weights: [128 weight rows x K] times a block of tokens, weights as WGMMA's M operand, expanded in registers. A warpgroup has a
// block of 64 rows of one half after the other, and the tokens in two parts: sums of the whole tile would leave no registers. Order along K and roundings are the contract's.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"
#include "cuda/moe_kernel/roles/weights_to_registers.cuh"

namespace monomoe::cuda {

inline constexpr int kParts = 2;  // of the tokens: kPart each, one after the other

// A thread has rows 16w + g (values 4j and + 1) and + 8 (4j + 2 and + 3) of tokens 8j + 2t and + 1 of each part.
template <int kPart>
struct PartSums {
  float value[kParts][kPart / 2];
};

// While the WGMMAs of one K block run, the next one is expanded and the codes after it are loaded; so too from one half to the other.
template <class C, int kPart>
struct MiddleTokensLoop {
  static_assert(!C::is_fp8);
  SharedStorage<C>& smem;
  MathRings<C>& rings;
  PartSums<kPart>& sums;
  int thread, lane, warpgroup;
  int left;  // K blocks of both halves that have not been issued
  float partial[kParts][kPart / 2];
  uint32_t a[2][16];  // fragments of the even and the odd K block of a stage
  PackedCodes codes;
  ScaleTables tables;

  __device__ __forceinline__ void await_weights() { wait_barrier(smem.weights_full_at(rings.weights.slot), rings.weights.phase); }
  // The codes at the ring's place. What lies past the last K block is loaded and expanded for nothing.
  __device__ __forceinline__ void load() { codes = load_codes(smem.weights_at(rings.weights.slot), warpgroup, thread); }
  __device__ __forceinline__ void look_up() { tables = look_up_tables(smem.tables_at(), codes.scales); }
  __device__ __forceinline__ void expand(uint32_t (&to)[16]) {
    pin(to);
    expand_fragment<Shift::kByMultiplier>(to, codes, tables);
    pin(to);
  }

  // What comes before the first K block's WGMMAs.
  __device__ __forceinline__ void begin() {
    await_weights();
    load();
    look_up();
    expand(a[0]);
    rings.held_weights = smem.weights_empty_at(rings.weights.slot);
    rings.weights.advance();
    if (left > 1) await_weights();
    load();
    look_up();
  }

  __device__ __forceinline__ void issue(const uint32_t (&weights)[16], uint32_t tokens_low) {
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t tokens = ptx::matrix_descriptor_of(tokens_low + part * (kPart * kBlockK / 16) + 2 * i);
        ptx::Wgmma<kPart>::registers(partial[part], weights[4 * i], weights[4 * i + 1], weights[4 * i + 2], weights[4 * i + 3], tokens, i > 0);
      }
      ptx::wgmma_commit();
    }
  }

  // sum = fma(partial, token scale, sum), once the part's WGMMAs have ended.
  template <int kOfPart>
  __device__ __forceinline__ void promote(uint32_t scales) {
    float2 scale[kPart / 8];
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      const uint2 pair = ptx::load_shared_8(scales + (kOfPart * kPart + 8 * j) * 4);
      scale[j] = make_float2(__uint_as_float(pair.x), __uint_as_float(pair.y));
    }
    ptx::wgmma_wait<kParts - 1 - kOfPart>();
    pin(partial[kOfPart]);
    float(&sum)[kPart / 2] = sums.value[kOfPart];
    const float(&from)[kPart / 2] = partial[kOfPart];
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      sum[4 * j] = fma_rn(from[4 * j], scale[j].x, sum[4 * j]);
      sum[4 * j + 1] = fma_rn(from[4 * j + 1], scale[j].y, sum[4 * j + 1]);
      sum[4 * j + 2] = fma_rn(from[4 * j + 2], scale[j].x, sum[4 * j + 2]);
      sum[4 * j + 3] = fma_rn(from[4 * j + 3], scale[j].y, sum[4 * j + 3]);
    }
  }

  // One K block. weights: its fragments; next: of the one after it. scales: shared address of this thread's first token's.
  __device__ __forceinline__ void k_block(const uint32_t (&weights)[16], uint32_t (&next)[16], uint32_t tokens_low, uint32_t scales) {
    --left;
    auto ahead = rings.weights;
    if (left > 0) ahead.advance();
    const bool here = ptx::mbarrier_test_wait(smem.weights_full_at(ahead.slot), ahead.phase) || left <= 1;
    issue(weights, tokens_low);
    rings.release_converged(lane);  // what these WGMMAs multiply was made of the slot's codes
    expand(next);
    if (left > 0) rings.held_weights = smem.weights_empty_at(rings.weights.slot);
    rings.weights = ahead;
    wait_barrier_asked(here, smem.weights_full_at(ahead.slot), ahead.phase);
    load();
    promote<0>(scales);
    look_up();
    promote<1>(scales);
  }
};

// A half's sums over all of K.
template <class C, int kPart>
__device__ __forceinline__ void middle_tokens_half(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int half, MathRings<C>& rings,
                                                   MiddleTokensLoop<C, kPart>& loop) {
  const int k_blocks = task_extent(params, task).k_blocks;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int j = 0; j < kPart / 2; ++j) loop.sums.value[part][j] = 0.0f;
  }
  wait_tokens(smem, rings, false);
  if (half == 0) trace_time(params, smem, TraceTime::kDataHere);
  for (int left = k_blocks;;) {
    const uint32_t tokens_low = ptx::uniform(ptx::descriptor_low(smem.tokens_at(rings.tokens.slot)));
    const uint32_t scales = smem.scales_at(rings.tokens.slot) + loop.lane % 4 * 8;
    loop.k_block(loop.a[0], loop.a[1], tokens_low, scales);
    if (left > 1) loop.k_block(loop.a[1], loop.a[0], tokens_low + kMiddleTokens * kBlockK / 16, scales + kMiddleTokens * 4);
    rings.held_tokens = smem.tokens_empty_at(rings.tokens.slot);
    rings.tokens.advance();
    left -= 2;
    if (left <= 0) break;
    wait_tokens(smem, rings, false);
  }
  if (k_blocks % 2 != 0) {  // the next half begins with a stage
#pragma unroll
    for (int i = 0; i < 16; ++i) loop.a[0][i] = loop.a[1][i];
  }
}

}  // namespace monomoe::cuda
