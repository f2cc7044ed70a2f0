// What happens to finished sums of few tokens: GEMM1's become the quantised intermediate in the workspace, GEMM2's become bf16 contributions in the
// memory of each token's rank. A thread holds, per block of 64 rows: rows 16w + g (sums 0, 1) and + 8 (sums 2, 3) of tokens 8j + 2t and + 1.
#pragma once

#include "cuda/moe_kernel/roles/few_tokens_gemm.cuh"
#include "cuda/moe_kernel/roles/quantise.cuh"
#include "cuda/moe_kernel/roles/swiglu_all.cuh"

namespace monomoe::cuda {

// GEMM1. SwiGLU is register-local: a thread has gate and up of channels 64 * warpgroup + 32m + 8w + g for its tokens. A token's 128 channels lie in
// eight lanes of all eight math warps, so their largest meets in shared memory; the codes are collected there too.
inline constexpr int kCodePitch = 128 + 16;  // bytes between two tokens' codes, against bank conflicts
struct QuantiseStaging {
  uint8_t codes[kFewTokens][kCodePitch];
  uint32_t largest[kFewTokens];  // magnitude bits
  float inverse[kFewTokens];     // negative: the token's group is not finite
};
static_assert(sizeof(QuantiseStaging) <= kStagingBytes);

// Maxima over the lanes of one token, into shared memory. h[m][2j + b]: token 8j + 2t + b.
template <int kTokens>
__device__ __forceinline__ void gather_largest(QuantiseStaging& staging, const float (&h)[kRowBlocks * kTokens / 4], int lane) {
  const int g = lane / 4, t = lane % 4;
  constexpr int kOwn = kTokens / 4;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t largest = max(magnitude_bits(h[2 * j + b]), magnitude_bits(h[kOwn + 2 * j + b]));
#pragma unroll
      for (int mask = 4; mask <= 16; mask *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, mask));
      if (g == j) atomicMax(&staging.largest[8 * j + 2 * t + b], largest);
    }
  }
}

// The scale of a token, a thread each; the scale is returned and stored when the codes are on their way.
__device__ __forceinline__ float token_scale(QuantiseStaging& staging, int token) {
  const uint32_t largest = staging.largest[token];
  const bool finite = largest < kFp32InfinityBits;
  const ActivationScale s = activation_scale(bits_float(largest), finite);
  staging.inverse[token] = finite ? s.inverse : -1.0f;
  return s.scale;
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm1_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                          Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32, g = lane / 4, t = lane % 4, warp = thread / 32;
  const int math_thread = warpgroup * 128 + thread;
  constexpr int kOwn = kTokens / 4;  // tokens of a thread
  auto& staging = *reinterpret_cast<QuantiseStaging*>(smem.staging());
  math_barrier();  // the staging of the last task has been read
  rings.release(lane);
  if (math_thread < kTokens) staging.largest[math_thread] = 0;
  float h[kRowBlocks * kOwn];
  const int count = task.count;
  swiglu_all(
      [&](int i) {
        if (i % kOwn / 2 * 8 + 2 * t + i % 2 >= count) return GateUp{1.0f, 1.0f};  // what lies in rows without a token must not send the others the slow way
        const float* s = &sums.value[i / kOwn][i % kOwn / 2 * 4 + i % 2];
        return GateUp{mul_rn(s[0], task.multiplier[0]), mul_rn(s[2], task.multiplier[1])};
      },
      params.swiglu_limit, h);
  math_barrier();
  gather_largest<kTokens>(staging, h, lane);
  math_barrier();
  const float scale = math_thread < count ? token_scale(staging, math_thread) : 0.0f;
  math_barrier();
  // Channel 64 * warpgroup + 32m + 8w + g is logical k 32t' + 8i + 4h' + b', at physical byte 32i + 16h' + 4t' + b' (numerics/tensor_core.h).
  const int place = 32 * warp + 16 * (g / 4) + 8 * warpgroup + g % 4;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int token = i / 2 * 8 + 2 * t + i % 2;
    const float inverse = staging.inverse[token];
    const uint32_t pair = inverse < 0.0f ? 0u : ptx::encode_e4m3_pair(mul_rn(h[i], inverse), mul_rn(h[kOwn + i], inverse));
    staging.codes[token][place] = static_cast<uint8_t>(pair);
    staging.codes[token][place + 4] = static_cast<uint8_t>(pair >> 8);
  }
  math_barrier();
  uint8_t* codes = mid_codes(params, task) + mid_row(task, task.tile, 0);
  for (int piece = math_thread; piece < task.count * 8; piece += kMathThreads) {
    const int row = piece / 8, chunk = piece % 8;
    *reinterpret_cast<uint4*>(codes + row * kBlockK + ((chunk ^ (row & 7)) << 4)) = *reinterpret_cast<const uint4*>(&staging.codes[row][chunk * 16]);
  }
  if (math_thread >= count) return;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const float weight = __ldcg(&routes[task.route_begin + math_thread].weight);
  mid_scales(params, task)[task.tile * block_rows(task) + math_thread] = route_scale(scale, weight);
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
}

}  // namespace monomoe::cuda
