// The main loop of both GEMMs: [256 weight rows x K] times a block of tokens, weights as WGMMA's M operand. A warpgroup has two blocks of 64
// rows; the fp32 sums of both stay in registers. Order along K and roundings are the contract's for every token count.
#pragma once

#include "cuda/moe_kernel/roles/weights_to_registers.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "numerics/fp32.h"
#include "plan/ring.h"

namespace monomoe::cuda {

inline constexpr int kRowBlocks = 2;  // of 64 rows, per warpgroup

// kTokens: tokens of one WGMMA; kChunks of them make the block.
template <int kTokens, int kChunks>
struct Sums {
  float value[kRowBlocks][kChunks][kTokens / 2];
};

template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void pin(uint32_t (&d)[16]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Ring as the math warps see it. A stage is given back only after the next WGMMA has been issued: that one overwrites the partial sums, so every
// shared load of the old stage has been consumed. Arriving straight after the wait let loads of the stage be overtaken.
template <class C>
struct MathRing {
  RingCursor<C::kStages> stage = RingCursor<C::kStages>::consumer();
  int held = -1;  // stage to give back

  __device__ __forceinline__ void wait(SharedStorage<C>& smem) {
    const uint32_t address = ptx::smem_address(&smem.full[stage.slot]);
    while (!ptx::mbarrier_try_wait(address, stage.phase)) {
    }
    // The gather warps' copies are generic-proxy writes; their arrival and this fence put them before the WGMMAs that follow.
    ptx::fence_proxy_async_smem();
  }
  __device__ __forceinline__ void release(SharedStorage<C>& smem, int lane) {
    if (held < 0) return;
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::smem_address(&smem.empty[held]));
    held = -1;
  }
};

// Block scales of FP8 for this warpgroup's rows: [0] rows g (gate), [1] rows g + 8 (up); for down both are the half's.
struct BlockScales {
  const float* first = nullptr;
  const float* second = nullptr;
};

__device__ __forceinline__ BlockScales block_scales(const Params& params, const BlockTask& task, int warpgroup) {
  const uint8_t* expert = params.slot_data[task.slot];
  if (static_cast<TaskKind>(task.kind) == TaskKind::kGemm2) {
    const int64_t half = min_of(2 * task.tile + warpgroup, params.experts.down_halves - 1);
    const auto* row = reinterpret_cast<const float*>(expert + params.experts.down_scales_begin) + half * params.experts.down_k_blocks;
    return {row, row};
  }
  const int64_t row = task.tile * params.experts.gate_up_k_blocks;
  return {reinterpret_cast<const float*>(expert + params.experts.gate_scales_begin) + row,
          reinterpret_cast<const float*>(expert + params.experts.up_scales_begin) + row};
}

// One K block's WGMMAs of one block of 64 rows and one chunk of tokens, from zero.
template <class C, int kTokens>
__device__ __forceinline__ void issue_block(float (&partial)[kTokens / 2], const uint32_t (&a)[16], uint64_t rows, uint64_t tokens) {
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (C::is_fp8) ptx::Wgmma<kTokens>::shared(partial, rows + 2 * i, tokens + 2 * i, i > 0);
    else ptx::Wgmma<kTokens>::registers(partial, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3], tokens + 2 * i, i > 0);
  }
  ptx::wgmma_commit();
}

// Scales of this thread's tokens: 8j + 2t and + 1.
template <int kTokens>
__device__ __forceinline__ void load_token_scales(float2 (&scale)[kTokens / 8], uint32_t scales, int pair) {
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const uint2 bits = ptx::load_shared_8(scales + j * 32 + pair * 8);
    scale[j] = make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
  }
}

// The promotion: sum = fma(partial, token scale [* block scale], sum).
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

template <class C, int kTokens, int kChunks>
__device__ __forceinline__ void gemm_sums(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring,
                                          Sums<kTokens, kChunks>& sums, int warpgroup, int thread) {
  // Up to 64 tokens both blocks of rows have partial sums of their own, so one's promotion and expansion run under the other's WGMMAs.
  constexpr bool kPaired = kTokens * kChunks <= 64;
  const bool down = static_cast<TaskKind>(task.kind) == TaskKind::kGemm2;
  const int k_blocks = static_cast<int>(down ? params.experts.down_k_blocks : params.experts.gate_up_k_blocks);
  const int lane = thread % 32, pair = lane % 4;
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int ch = 0; ch < kChunks; ++ch) {
#pragma unroll
      for (int j = 0; j < kTokens / 2; ++j) sums.value[m][ch][j] = 0.0f;
    }
  }
  BlockScales blocks;
  float row_scale[2] = {1.0f, 1.0f}, next_scale[2] = {1.0f, 1.0f};
  if constexpr (C::is_fp8) {
    blocks = block_scales(params, task, warpgroup);
    next_scale[0] = __ldg(blocks.first);
    next_scale[1] = __ldg(blocks.second);
  }
  constexpr uint32_t kHalf = static_cast<uint32_t>(C::is_fp8 ? kFp8HalfBytes : kFp4HalfBytes);
  float partial[kPaired ? 2 : 1][kTokens / 2];
  uint32_t a[kRowBlocks][16];
  const auto half_of = [&](uint32_t slot) { return ptx::smem_address(smem.weights[slot]) + warpgroup * kHalf; };
  const auto expand = [&](int m, uint32_t slot) {
    if constexpr (!C::is_fp8) {
      expand_fp4(a[m], smem, half_of(slot), m, thread);
      pin(a[m]);
    }
  };
  ring.wait(smem);
  expand(0, ring.stage.slot);
  expand(1, ring.stage.slot);
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    const bool more = k_block + 1 < k_blocks;
    const uint32_t slot = ring.stage.slot;
    const uint64_t tokens = ptx::matrix_descriptor(ptx::smem_address(smem.tokens[slot]));
    const uint64_t rows = ptx::matrix_descriptor(half_of(slot));
    const uint32_t scales = ptx::smem_address(smem.scales[slot]);
    float2 scale[kTokens / 8];
    if constexpr (C::is_fp8) {
      row_scale[0] = next_scale[0];
      row_scale[1] = next_scale[1];
      const int ahead = more ? k_block + 1 : k_block;
      next_scale[0] = __ldg(blocks.first + ahead);
      next_scale[1] = __ldg(blocks.second + ahead);
    }
    const auto next_stage = [&] {  // the next stage, and half of its weights, while WGMMAs of this one run
      ring.stage.advance();
      if (more) {
        ring.wait(smem);
        expand(0, ring.stage.slot);
      }
    };
    if constexpr (kPaired) {
      issue_block<C, kTokens>(partial[0], a[0], rows, tokens);
      issue_block<C, kTokens>(partial[1], a[1], rows + 64 * 128 / 16, tokens);
      ring.release(smem, lane);
      load_token_scales<kTokens>(scale, scales, pair);
      ptx::wgmma_wait<1>();
      promote<C, kTokens>(sums.value[0][0], partial[0], scale, row_scale);
      next_stage();
      ptx::wgmma_wait<0>();
      promote<C, kTokens>(sums.value[1][0], partial[1], scale, row_scale);
    } else {
#pragma unroll
      for (int ch = 0; ch < kChunks; ++ch) {
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          issue_block<C, kTokens>(partial[0], a[m], rows + m * (64 * 128 / 16), tokens + ch * (kTokens * 128 / 16));
          if (ch == 0 && m == 0) ring.release(smem, lane);
          if (m == 0) load_token_scales<kTokens>(scale, scales + ch * kTokens * 4, pair);
          if (ch == kChunks - 1 && m == kRowBlocks - 1) next_stage();
          ptx::wgmma_wait<0>();
          promote<C, kTokens>(sums.value[m][ch], partial[0], scale, row_scale);
        }
      }
    }
    if (more) expand(1, ring.stage.slot);
    ring.held = static_cast<int>(slot);
  }
}

}  // namespace monomoe::cuda
