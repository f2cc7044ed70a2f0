// What happens to finished sums of few tokens: GEMM1's become the quantised intermediate in the workspace, GEMM2's become bf16 contributions in the
// memory of each token's rank. A thread holds, per block of 64 rows: rows 16w + g (sums 0, 1) and + 8 (sums 2, 3) of tokens 8j + 2t and + 1.
#pragma once

#include "cuda/moe_kernel/roles/few_tokens_gemm.cuh"
#include "cuda/moe_kernel/roles/quantise.cuh"
#include "numerics/swiglu.h"

namespace monomoe::cuda {

// GEMM1's sums pass through the staging sixteen tokens at a time, [token][256 rows] fp32, so that what follows is a short loop for any number of
// tokens. Sixteen threads then have a token, each the gate and up rows of 8 neighbouring channels. 260 words a token and the exchanged
// 16-byte pieces keep both accesses free of bank conflicts.
inline constexpr int kPassTokens = 16;
inline constexpr int kTokenWords = kTileRows + 4;

// Word of packed row 64 * block + 16 * warp + 8 * is_up + g; the low two bits of its 16-byte piece are exchanged by warp.
__device__ __forceinline__ int staged_word(int token, int block, int warp, int is_up, int g) {
  const int piece = 4 * (4 * block + warp) + ((2 * is_up + g / 4) ^ warp);
  return token * kTokenWords + piece * 4 + g % 4;
}

// Eight channels of a token: gate rows 16p .. 16p + 7 and up rows after them.
__device__ __forceinline__ void swiglu_eight(const float* staged, int p, float limit, float (&h)[8]) {
  float rows[16];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(staged + (4 * p + (i ^ (p % 4))) * 4);
    rows[4 * i] = v.x;
    rows[4 * i + 1] = v.y;
    rows[4 * i + 2] = v.z;
    rows[4 * i + 3] = v.w;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) h[i] = swiglu(rows[i], rows[8 + i], limit);
}

// One pass: tokens [first, first + 16) of the block are staged; quantise them into the workspace.
__device__ __forceinline__ void store_pass(const Params& params, const BlockTask& task, const float* staged, int first, int math_thread) {
  const int token = math_thread / 16, part = math_thread % 16, lane = math_thread % 32;
  float h[8];
  swiglu_eight(staged + token * kTokenWords, part, params.swiglu_limit, h);
  uint32_t words[2];
  float scale;
  quantise_eight(h, words, scale);
  const uint4 chunk = physical_chunk(words, lane);
  if (first + token >= task.count) return;
  const int row = first + token;
  if (part < 8) *reinterpret_cast<uint4*>(mid_codes(params, task) + mid_row(task, task.tile, row) + ((part ^ (row & 7)) << 4)) = chunk;
  if (part != 8) return;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  mid_scales(params, task)[task.tile * block_rows(task) + row] = route_scale(scale, __ldcg(&routes[task.route_begin + row].weight));
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm1_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                          Sums<kTokens>& sums, uint64_t epoch, int warpgroup) {
  const int thread = ptx::thread_index() % 128;
  const int lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
  const int math_thread = warpgroup * 128 + thread;
  auto* staged = reinterpret_cast<float*>(smem.staging());
  constexpr int kGroups = kTokens / 8;  // of 8 tokens
#pragma unroll
  for (int group = 0; group < kGroups; group += 2) {
    math_barrier();  // the staging has been read
    if (group == 0) rings.release(lane);
#pragma unroll
    for (int half = 0; half < 2 && group + half < kGroups; ++half) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {  // r / 2: gate or up; r % 2: token
          const float sum = mul_rn(sums.value[m][4 * (group + half) + r], task.multiplier[r / 2]);
          staged[staged_word(half * 8 + 2 * t + r % 2, 2 * warpgroup + m, warp, r / 2, g)] = sum;
        }
      }
    }
    math_barrier();
    if (group * 8 < task.count) store_pass(params, task, staged, group * 8, math_thread);
  }
  math_barrier();
  if (math_thread == 0) publish_gemm1(params, task, epoch, kMathWarps);
}

inline constexpr int kStagedTokens = 32;  // contributions [32 tokens x 256 rows] bf16 fill the staging

// Tokens [begin, begin + 8) of this thread's rows into the staging, transposed to [token][row]; 16-byte chunks swizzled by token.
__device__ __forceinline__ void stage_eight_tokens(uint32_t staging, int token, int row, const float (&s)[4], float multiplier, int lane) {
  const uint32_t first = ptx::encode_bf16_pair(mul_rn(s[0], multiplier), mul_rn(s[1], multiplier));
  const uint32_t second = ptx::encode_bf16_pair(mul_rn(s[2], multiplier), mul_rn(s[3], multiplier));
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

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm2_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                          Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128;
  const int lane = thread % 32, warp = thread / 32;
  const int math_thread = warpgroup * 128 + thread;
  const uint32_t staging = smem.expanded_at();
  math_barrier();  // the staging of the last task has been read
  rings.release(lane);
  constexpr int kGroups = kTokens / 8;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
#pragma unroll
    for (int m = 0; m < kRowBlocks; ++m) {
      const float s[4] = {sums.value[m][4 * group], sums.value[m][4 * group + 1], sums.value[m][4 * group + 2], sums.value[m][4 * group + 3]};
      const int row = 64 * (2 * warpgroup + m) + 16 * warp;
      stage_eight_tokens(staging, group * 8 % kStagedTokens, row, s, task.multiplier[0], lane);
    }
    const bool full = group * 8 % kStagedTokens == kStagedTokens - 8;
    if (full || group == kGroups - 1) {
      math_barrier();
      send_staged(params, task, smem.staging(), group * 8 / kStagedTokens * kStagedTokens, math_thread);
      math_barrier();
    }
  }
  if (math_thread < task.count) {
    const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
    const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + math_thread));
    __threadfence_system();
    ptx::add_relaxed_system(reinterpret_cast<uint32_t*>(params.peers[route.x] + params.symmetric.arrivals) + route.y, 1);
  }
}

}  // namespace monomoe::cuda
