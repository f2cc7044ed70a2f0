// What happens to finished sums: GEMM1's become the quantised intermediate in the workspace, GEMM2's become bf16 contributions in the memory of
// each token's rank. A thread holds, per block of 64 rows: rows 16w + g (sums 0, 1) and + 8 (sums 2, 3) of tokens 8j + 2t and + 1.
#pragma once

#include "cuda/moe_kernel/roles/gemm.cuh"
#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "numerics/swiglu.h"
#include "numerics/tensor_core.h"

namespace monomoe::cuda {

__device__ __forceinline__ void math_barrier() { ptx::named_barrier_sync(kMathBarrier, kMathThreads); }

// Rows g are gate and rows g + 8 up of one channel, so SwiGLU needs no exchange. h replaces the gate's sum.
template <int kTokens, int kChunks>
__device__ __forceinline__ void apply_swiglu(const BlockTask& task, float limit, Sums<kTokens, kChunks>& sums) {
#pragma unroll
  for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
    for (int ch = 0; ch < kChunks; ++ch) {
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        float* s = sums.value[m][ch] + 4 * j;
#pragma unroll
        for (int e = 0; e < 2; ++e) s[e] = swiglu(mul_rn(s[e], task.multiplier[0]), mul_rn(s[2 + e], task.multiplier[1]), limit);
      }
    }
  }
}

// This rank has read every row its peers sent in this call: they may send the next.
__device__ __forceinline__ void publish_drained(const Params& params, uint64_t epoch) {
  for (int src = 0; src < params.problem.ranks; ++src) ptx::store_release_system(&symmetric_flags(params, src)->drained[params.self], epoch);
}

template <class C, int kTokens, int kChunks>
__device__ __forceinline__ void gemm1_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring,
                                               Sums<kTokens, kChunks>& sums, uint64_t epoch, int warpgroup, int thread) {
  const int lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
  const int math_thread = warpgroup * 128 + thread;
  apply_swiglu(task, params.swiglu_limit, sums);
  if (math_thread < kMaxTokens) smem.largest[math_thread] = 0;
  math_barrier();
  ring.release(smem, lane);
#pragma unroll
  for (int ch = 0; ch < kChunks; ++ch) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const uint32_t a = magnitude_bits(sums.value[0][ch][4 * j + e]), b = magnitude_bits(sums.value[1][ch][4 * j + e]);
        uint32_t largest = a > b ? a : b;
#pragma unroll
        for (int mask = 4; mask <= 16; mask *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, mask));
        if (g == 0) atomicMax(&smem.largest[ch * kTokens + 8 * j + 2 * t + e], largest);
      }
    }
  }
  math_barrier();
  const Problem& p = params.problem;
  if (math_thread < task.count) {
    const uint32_t bits = smem.largest[math_thread];
    const bool finite = bits < kFp32InfinityBits;
    const ActivationScale scale = activation_scale(bits_float(bits), finite);
    smem.inverse[math_thread] = finite ? scale.inverse : fp32_nan();  // NaN: all codes 0
    const int64_t route = task.route_begin + math_thread;
    const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
    const float weight = __ldcg(&routes[route].weight);
    auto* scales = reinterpret_cast<float*>(params.workspace + params.local.mid_scales);
    scales[route * p.intermediate_blocks() + task.tile] = route_scale(scale.scale, weight);
  }
  math_barrier();
  const uint32_t staging = ptx::smem_address(smem.staging);
#pragma unroll
  for (int ch = 0; ch < kChunks; ++ch) {
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = ch * kTokens + 8 * j + 2 * t + e;
        const float inverse = smem.inverse[token];
#pragma unroll
        for (int m = 0; m < kRowBlocks; ++m) {
          // Channel 32 * (2 * warpgroup + m) + 8 * warp + g in physical order.
          const int physical = 32 * warp + 16 * (g / 4) + 4 * (2 * warpgroup + m) + g % 4;
          const uint32_t code = is_nan(inverse) ? 0u : e4m3_encode(mul_rn(sums.value[m][ch][4 * j + e], inverse));
          ptx::store_shared_1(staging + token * 128 + physical, code);
        }
      }
    }
  }
  math_barrier();
  uint8_t* codes = params.workspace + params.local.mid_codes + task.route_begin * p.padded_intermediate() + task.tile * kBlockK;
  for (int piece = math_thread; piece < task.count * 8; piece += kMathThreads) {
    const int token = piece / 8, chunk = piece % 8;
    const uint4 v = *reinterpret_cast<const uint4*>(smem.staging + token * 128 + chunk * 16);
    *reinterpret_cast<uint4*>(codes + token * p.padded_intermediate() + chunk * 16) = v;
  }
  math_barrier();
  if (math_thread == 0) {
    auto* done = reinterpret_cast<uint32_t*>(params.workspace + params.local.block_done) + task.block;
    __threadfence();
    ptx::add_release_gpu(done, 1);
    const auto* block_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin);
    const int64_t tasks = __ldcg(block_begin + params.num_slots) * p.intermediate_blocks();
    const uint64_t finished = ptx::fetch_add_acq_rel_gpu(&params.state->gemm1_done, 1) + 1;
    if (finished == static_cast<uint64_t>(tasks)) publish_drained(params, epoch);
  }
}

inline constexpr int kStagedTokens = 32;  // contributions [32 tokens x 256 rows] bf16 fill the staging

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  return static_cast<uint32_t>(bf16_encode(low)) | static_cast<uint32_t>(bf16_encode(high)) << 16;
}

// Tokens [begin, begin + 8) of this thread's rows into the staging, transposed to [token][row]; 16-byte chunks swizzled by token.
__device__ __forceinline__ void stage_eight_tokens(uint32_t staging, int token, int row, const float (&s)[4], float multiplier, int lane) {
  const uint32_t first = bf16_pair(mul_rn(s[0], multiplier), mul_rn(s[1], multiplier));
  const uint32_t second = bf16_pair(mul_rn(s[2], multiplier), mul_rn(s[3], multiplier));
  const int local = token + lane % 8, chunk = row / 8 + (lane / 8) % 2;
  ptx::store_matrices_transposed(staging + local * 512 + ((chunk ^ (local & 7)) << 4), first, second);
}

__device__ __forceinline__ void send_staged(const Params& params, const BlockTask& task, const uint8_t* staging, int begin, int math_thread) {
  const Problem& p = params.problem;
  const int rows = static_cast<int>(min_of(kTileRows, p.hidden - static_cast<int64_t>(task.tile) * kTileRows));
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int lane = math_thread % 32;
  for (int local = math_thread / 32; local < kStagedTokens && begin + local < task.count; local += kMathWarps) {
    const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + begin + local));
    uint8_t* row = params.peers[route.x] + params.symmetric.contributions +
                   ((static_cast<int64_t>(route.y) * p.topk + route.z) * p.hidden + static_cast<int64_t>(task.tile) * kTileRows) * 2;
    if (lane * 8 >= rows) continue;
    const uint4 v = *reinterpret_cast<const uint4*>(staging + local * 512 + ((lane ^ (local & 7)) << 4));
    *reinterpret_cast<uint4*>(row + lane * 16) = v;
  }
}

template <class C, int kTokens, int kChunks>
__device__ __forceinline__ void gemm2_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring,
                                               Sums<kTokens, kChunks>& sums, int warpgroup, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  const int math_thread = warpgroup * 128 + thread;
  const uint32_t staging = ptx::smem_address(smem.staging);
  math_barrier();  // the staging of the last task has been read
  ring.release(smem, lane);
  constexpr int kGroups = kTokens * kChunks / 8;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const int ch = group * 8 / kTokens, j = group % (kTokens / 8);
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const float s[4] = {sums.value[m][ch][4 * j], sums.value[m][ch][4 * j + 1], sums.value[m][ch][4 * j + 2], sums.value[m][ch][4 * j + 3]};
      const int row = 64 * (2 * warpgroup + m) + 16 * warp;
      stage_eight_tokens(staging, group * 8 % kStagedTokens, row, s, task.multiplier[0], lane);
    }
    const bool full = group * 8 % kStagedTokens == kStagedTokens - 8;
    if (full || group == kGroups - 1) {
      math_barrier();
      send_staged(params, task, smem.staging, group * 8 / kStagedTokens * kStagedTokens, math_thread);
      math_barrier();
    }
  }
  if (math_thread < task.count) {
    const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
    const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + math_thread));
    __threadfence_system();
    ptx::add_release_system(reinterpret_cast<uint32_t*>(params.peers[route.x] + params.symmetric.arrivals) + route.y, 1);
  }
}

}  // namespace monomoe::cuda
