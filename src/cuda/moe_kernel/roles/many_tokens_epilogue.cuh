// What happens to finished sums of many tokens. A thread holds, per subtile of 64 tokens, tokens 16w + g and + 8 and of a half's 128 columns
// 8j + 2t and + 1. Whatever must be joined lies in the four lanes of a quad, so there is no staging and no barrier: a warp works alone.
#pragma once

#include "cuda/moe_kernel/roles/many_tokens_gemm.cuh"
#include "cuda/moe_kernel/roles/swiglu_all.cuh"
#include "numerics/activation_quant.h"

namespace monomoe::cuda {

inline constexpr int kHalfHidden = 32;  // of a thread: [r][q][b], token g + 8r, channel 8q + 2t + b of the half's 64

__device__ __forceinline__ int subtile_token(int warpgroup, int m, int thread) {
  return (warpgroup + m * kMathWarpgroups) * kSubtileTokens + thread / 32 * 16 + thread % 32 / 4;
}

// Eight values a round, of two q, in a loop that stays one: all at once are 17 KB of instructions a subtile, which come from the L2 each time (1,024 tokens, NVFP4:
// 524 us instead of 501). The sums move along, and the values take their places behind them.
__device__ __forceinline__ void swiglu_half(float (&sum)[kColumnSums], const BlockTask& task, int token, float limit, float (&h)[kHalfHidden]) {
  constexpr int kValues = 8, kSums = 2 * kValues;
  const bool live[2] = {token < task.count, token + 8 < task.count};
#pragma unroll 1
  for (int round = 0; round < kColumnSums / kSums; ++round) {
    float made[kValues];  // [q][r][b]
    swiglu_all(
        [&](int i) {
          const int q = i / 4, r = i / 2 % 2, b = i % 2;
          if (!live[r]) return GateUp{1.0f, 1.0f};  // what lies in rows without a token must not send the others the slow way
          return GateUp{mul_rn(sum[8 * q + 2 * r + b], task.multiplier[0]), mul_rn(sum[8 * q + 4 + 2 * r + b], task.multiplier[1])};
        },
        limit, made);
#pragma unroll
    for (int i = 0; i < kColumnSums - kSums; ++i) sum[i] = sum[i + kSums];
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[kColumnSums - kSums + i] = made[i];
  }
#pragma unroll
  for (int i = 0; i < kHalfHidden; ++i) {
    const int r = i / 16, q = i / 2 % 8, b = i % 2;
    h[i] = sum[q / 2 * kSums + q % 2 * 4 + r * 2 + b];
  }
}

// The first half's result waits in the scratch, where the same thread finds it: 128 channels are quantised together.
__device__ __forceinline__ float4* scratch_of(const Params& params, int m, int math_thread) {
  return reinterpret_cast<float4*>(params.scratch) + (blockIdx.x * kManyScratchBytes / 16) + m * (kHalfHidden / 4) * kMathThreads + math_thread;
}
__device__ __forceinline__ void keep_half(const Params& params, const float (&h)[kHalfHidden], int m, int math_thread) {
  float4* scratch = scratch_of(params, m, math_thread);
#pragma unroll
  for (int i = 0; i < kHalfHidden / 4; ++i) __stcg(scratch + i * kMathThreads, make_float4(h[4 * i], h[4 * i + 1], h[4 * i + 2], h[4 * i + 3]));
}
__device__ __forceinline__ void kept_half(const Params& params, float (&h)[kHalfHidden], int m, int math_thread) {
  const float4* scratch = scratch_of(params, m, math_thread);
#pragma unroll
  for (int i = 0; i < kHalfHidden / 4; ++i) {
    const float4 v = __ldcg(scratch + i * kMathThreads);
    h[4 * i] = v.x;
    h[4 * i + 1] = v.y;
    h[4 * i + 2] = v.z;
    h[4 * i + 3] = v.w;
  }
}

// Codes of one token's K block (swizzled by its row): 16 values of each half in this lane, all 128 in the quad. Even and odd lanes exchange, so that each gets two whole 16-byte
// pieces: physical byte 32i + 16(t / 2) + 4(2 * half + q / 4) + 2(t % 2) + b holds channel 64 * half + 8q + 2t + b, i = q % 4.
__device__ __forceinline__ void store_codes(uint8_t* codes, int row, const float* first, const float* second, float inverse, bool finite, bool live, int lane) {
  const bool odd = lane % 2 != 0;
  uint32_t low[4], high[4];
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    const float* h = x < 2 ? first : second;
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = 4 * (x % 2) + i;
      pair[i] = ptx::encode_e4m3_pair(mul_rn(h[2 * q], inverse), mul_rn(h[2 * q + 1], inverse));
    }
    const uint32_t early = finite ? pair[0] | pair[1] << 16 : 0u, late = finite ? pair[2] | pair[3] << 16 : 0u;
    const uint32_t got = __shfl_xor_sync(0xFFFFFFFFu, odd ? early : late, 1);
    const uint32_t even_side = odd ? got : early, odd_side = odd ? late : got;
    low[x] = ptx::byte_permute(even_side, odd_side, 0x5410);
    high[x] = ptx::byte_permute(even_side, odd_side, 0x7632);
  }
  if (!live) return;
  const int piece = (odd ? 4 : 0) + lane % 4 / 2;
  *reinterpret_cast<uint4*>(codes + ((piece ^ (row & 7)) << 4)) = make_uint4(low[0], low[1], low[2], low[3]);
  *reinterpret_cast<uint4*>(codes + (((piece + 2) ^ (row & 7)) << 4)) = make_uint4(high[0], high[1], high[2], high[3]);
}

__device__ __forceinline__ void quantise_half_pair(const Params& params, const BlockTask& task, const float (&first)[kHalfHidden],
                                                   const float (&second)[kHalfHidden], int token, int lane) {
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) largest = max(largest, max(magnitude_bits(first[16 * r + i]), magnitude_bits(second[16 * r + i])));
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
    largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
    const bool finite = largest < kFp32InfinityBits, live = token + 8 * r < task.count;
    const ActivationScale s = activation_scale(bits_float(largest), finite);
    const int row = token + 8 * r;
    store_codes(mid_codes(params, task) + mid_row(task, task.tile, row), row, first + 16 * r, second + 16 * r, s.inverse, finite, live, lane);
    if (!live || lane % 4 != 0) continue;
    mid_scales(params, task)[task.tile * block_rows(task) + row] = route_scale(s.scale, __ldcg(&routes[task.route_begin + row].weight));
  }
}

template <int kSubtiles>
__device__ __forceinline__ void many_tokens_gemm1_epilogue(const Params& params, const BlockTask& task, int half, TokenSums<kSubtiles>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128;
  const int lane = thread % 32, math_thread = warpgroup * 128 + thread;
  float(&sum)[kColumnSums] = sums.value[0];
#pragma unroll 1
  for (int m = 0; m < kSubtiles; ++m) {
    float h[kHalfHidden];
    swiglu_half(sum, task, subtile_token(warpgroup, m, thread), params.swiglu_limit, h);
    if (half == 0) {
      keep_half(params, h, m, math_thread);
    } else {
      float first[kHalfHidden];
      kept_half(params, first, m, math_thread);
      quantise_half_pair(params, task, first, h, subtile_token(warpgroup, m, thread), lane);
    }
#pragma unroll
    for (int i = 0; i < kColumnSums; ++i) sum[i] = sums.value[kSubtiles - 1][i];
  }
}

// Words of column groups 0..3 in the four lanes of a quad -> lane t has the 16 bytes of group t.
__device__ __forceinline__ uint4 transpose_quad(const uint32_t (&word)[4], int lane) {
  const bool odd = lane % 2 != 0, upper = lane % 4 >= 2;
  const uint32_t a = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[0] : word[1], 1), b = __shfl_xor_sync(0xFFFFFFFFu, odd ? word[2] : word[3], 1);
  const uint32_t low0 = odd ? a : word[0], low1 = odd ? word[1] : a;    // group t % 2 of the pair's lanes
  const uint32_t high0 = odd ? b : word[2], high1 = odd ? word[3] : b;  // group 2 + t % 2
  const uint32_t c = __shfl_xor_sync(0xFFFFFFFFu, upper ? low0 : high0, 2), d = __shfl_xor_sync(0xFFFFFFFFu, upper ? low1 : high1, 2);
  return upper ? make_uint4(c, d, high0, high1) : make_uint4(low0, low1, c, d);
}

template <int kSubtiles>
__device__ __forceinline__ void many_tokens_gemm2_epilogue(const Params& params, const BlockTask& task, int half,
                                                           TokenSums<kSubtiles>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128;
  const Problem& p = params.problem;
  const int lane = thread % 32;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
#pragma unroll
  for (int m = 0; m < kSubtiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = subtile_token(warpgroup, m, thread) + 8 * r;
      const bool live = token < task.count;
      const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + (live ? token : 0)));
      auto* row = reinterpret_cast<uint4*>(params.peers[route.x] + params.symmetric.contributions +
                                           ((static_cast<int64_t>(route.y) * p.topk + route.z) * p.hidden + (2 * task.tile + half) * kHalfRows) * 2);
#pragma unroll
      for (int quad = 0; quad < kColumns / 32; ++quad) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = &sums.value[m][4 * (4 * quad + i) + 2 * r];
          word[i] = ptx::encode_bf16_pair(mul_rn(pair[0], task.multiplier[0]), mul_rn(pair[1], task.multiplier[0]));
        }
        const uint4 piece = transpose_quad(word, lane);
        if (live) row[4 * quad + lane % 4] = piece;
      }
    }
  }
}

}  // namespace monomoe::cuda
