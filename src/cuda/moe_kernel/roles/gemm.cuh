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

template <class C, int kTokens, int kChunks>
__device__ __forceinline__ void gemm_sums(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring,
                                          Sums<kTokens, kChunks>& sums, int warpgroup, int thread) {
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
  float next_scale[2] = {1.0f, 1.0f};
  if constexpr (C::is_fp8) {
    blocks = block_scales(params, task, warpgroup);
    next_scale[0] = __ldg(blocks.first);
    next_scale[1] = __ldg(blocks.second);
  }
  float partial[kTokens / 2];
  uint32_t a[C::is_fp8 ? 1 : kRowBlocks][16];
  for (int k_block = 0; k_block < k_blocks; ++k_block) {
    ring.wait(smem);
    const uint32_t slot = ring.stage.slot;
    const uint32_t weights = ptx::smem_address(smem.weights[slot]);
    const uint32_t half = weights + warpgroup * static_cast<uint32_t>(C::is_fp8 ? kFp8HalfBytes : kFp4HalfBytes);
    const float row_scale[2] = {next_scale[0], next_scale[1]};
    if constexpr (C::is_fp8) {
      const int ahead = min(k_block + 1, k_blocks - 1);
      next_scale[0] = __ldg(blocks.first + ahead);
      next_scale[1] = __ldg(blocks.second + ahead);
    } else {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        expand_fp4(a[m], smem, half, m, thread);
        pin(a[m]);
      }
    }
    const uint64_t tokens = ptx::matrix_descriptor(ptx::smem_address(smem.tokens[slot]));
    const uint64_t rows = ptx::matrix_descriptor(half);
#pragma unroll
    for (int ch = 0; ch < kChunks; ++ch) {
      float2 scale[kTokens / 8];
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        const uint64_t b = tokens + ch * (kTokens * 128 / 16);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (C::is_fp8) {
            ptx::Wgmma<kTokens>::shared(partial, rows + m * (64 * 128 / 16) + 2 * i, b + 2 * i, i > 0);
          } else {
            ptx::Wgmma<kTokens>::registers(partial, a[m][4 * i], a[m][4 * i + 1], a[m][4 * i + 2], a[m][4 * i + 3], b + 2 * i, i > 0);
          }
        }
        ptx::wgmma_commit();
        if (ch == 0 && m == 0) ring.release(smem, lane);
        if (m == 0) {
          const uint32_t scales = ptx::smem_address(smem.scales[slot]) + ch * kTokens * 4 + pair * 8;
#pragma unroll
          for (int j = 0; j < kTokens / 8; ++j) {
            const uint2 bits = ptx::load_shared_8(scales + j * 32);
            scale[j] = make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
          }
        }
        ptx::wgmma_wait<0>();
        pin(partial);
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j) {
          float* sum = sums.value[m][ch] + 4 * j;
          const float2 first = C::is_fp8 ? make_float2(mul_rn(scale[j].x, row_scale[0]), mul_rn(scale[j].y, row_scale[0])) : scale[j];
          const float2 second = C::is_fp8 ? make_float2(mul_rn(scale[j].x, row_scale[1]), mul_rn(scale[j].y, row_scale[1])) : scale[j];
          sum[0] = fma_rn(partial[4 * j], first.x, sum[0]);
          sum[1] = fma_rn(partial[4 * j + 1], first.y, sum[1]);
          sum[2] = fma_rn(partial[4 * j + 2], second.x, sum[2]);
          sum[3] = fma_rn(partial[4 * j + 3], second.y, sum[3]);
        }
      }
    }
    ring.held = static_cast<int>(slot);
    ring.stage.advance();
  }
}

}  // namespace monomoe::cuda
