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
  float inverse[kFewTokens];     // negative: the token's group is not finite
  uint32_t largest[kFewTokens];  // magnitude bits; zero between tasks
};
template <class C>
__device__ __forceinline__ QuantiseStaging& quantise_staging(SharedStorage<C>& smem) { return *reinterpret_cast<QuantiseStaging*>(smem.staging()); }

// GEMM2. A warpgroup sends its half of the rows alone, so each has its own place; both lie behind GEMM1's, which the other one may still read.
inline constexpr int kStagedTokens = 32;
inline constexpr int kStagedRowBytes = kHalfRows * 2;  // bf16
inline constexpr int kStagedBytes = kStagedTokens * kStagedRowBytes;
inline constexpr int kContributionsBegin = (static_cast<int>(sizeof(QuantiseStaging)) + 1023) / 1024 * 1024;
static_assert(kContributionsBegin + kMathWarpgroups * kStagedBytes <= kStagingBytes);

// The staging lies where FP4's expanded tiles do: after such a task the other warpgroup may still multiply the last of them, and the maxima are lost.
template <class C>
__device__ __forceinline__ void prepare_staging(SharedStorage<C>& smem, MathRings<C>& rings, int math_thread) {
  if (rings.staging_ready) return;
  math_barrier();
  if (math_thread < kFewTokens) quantise_staging(smem).largest[math_thread] = 0;
  math_barrier();
  rings.staging_ready = true;
}

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
__device__ __forceinline__ float token_scale(QuantiseStaging& staging, uint32_t largest, int token) {
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
  const int count = task.count;
  // What the route adds at the end is asked for now.
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const float weight = math_thread < count ? __ldcg(&routes[task.route_begin + math_thread].weight) : 0.0f;
  float h[kRowBlocks * kOwn];
  swiglu_all(
      [&](int i) {
        if (i % kOwn / 2 * 8 + 2 * t + i % 2 >= count) return GateUp{1.0f, 1.0f};  // what lies in rows without a token must not send the others the slow way
        const float* s = &sums.value[i / kOwn][i % kOwn / 2 * 4 + i % 2];
        return GateUp{mul_rn(s[0], task.multiplier[0]), mul_rn(s[2], task.multiplier[1])};
      },
      params.swiglu_limit, h);
  QuantiseStaging& staging = quantise_staging(smem);
  prepare_staging(smem, rings, math_thread);
  gather_largest<kTokens>(staging, h, lane);
  math_barrier();  // and the codes of the last task have been read
  rings.release(lane);
  float scale = 0.0f;
  if (math_thread < kTokens) {
    scale = token_scale(staging, staging.largest[math_thread], math_thread);
    staging.largest[math_thread] = 0;  // for the next task
  }
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
  if (math_thread < count) mid_scales(params, task)[task.tile * block_rows(task) + math_thread] = route_scale(scale, weight);
}

// Eight tokens from `token` on of this thread's rows into the warpgroup's staging, transposed to [token][row]; 16-byte chunks swizzled by token.
__device__ __forceinline__ void stage_eight_tokens(uint32_t staging, int token, int row, const float (&s)[4], float multiplier, int lane) {
  const uint32_t first = ptx::encode_bf16_pair(mul_rn(s[0], multiplier), mul_rn(s[1], multiplier));
  const uint32_t second = ptx::encode_bf16_pair(mul_rn(s[2], multiplier), mul_rn(s[3], multiplier));
  const int local = token + lane % 8, chunk = row / 8 + (lane / 8) % 2;
  ptx::store_matrices_transposed(staging + local * kStagedRowBytes + ((chunk ^ (local & 7)) << 4), first, second);
}

// Where the warpgroup's rows of a route's contribution go: to the memory of the token's rank.
__device__ __forceinline__ uint8_t* contribution_of(const Params& params, const BlockTask& task, int token, int warpgroup) {
  const Problem& p = params.problem;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + token));
  return params.peers[route.x] + params.symmetric.contributions +
         ((static_cast<int64_t>(route.y) * p.topk + route.z) * p.hidden + static_cast<int64_t>(task.tile) * kTileRows + warpgroup * kHalfRows) * 2;
}

// A warp sends every fourth token of a round, two at a time: lanes 0..15 one, lanes 16..31 the next. Lane i knows where the warp's token i goes.
template <int kRoundTokens>
__device__ __forceinline__ void send_staged(const uint8_t* staging, uint8_t* destination, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < kRoundTokens / 8; ++i) {
    const int mine = 2 * i + lane / 16, local = 4 * mine + warp;
    auto* row = reinterpret_cast<uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(destination), mine));
    if (row == nullptr) continue;
    const uint4 v = *reinterpret_cast<const uint4*>(staging + local * kStagedRowBytes + ((lane % 16 ^ (local & 7)) << 4));
    *reinterpret_cast<uint4*>(row + lane % 16 * 16) = v;
  }
}

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_gemm2_epilogue(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                          Sums<kTokens>& sums, int warpgroup) {
  const int thread = ptx::thread_index() % 128, lane = thread % 32, warp = thread / 32;
  const auto barrier = static_cast<NamedBarrier>(kWarpgroupBarrier + warpgroup);
  constexpr int kRounds = (kTokens + kStagedTokens - 1) / kStagedTokens;
  const bool has_rows = warpgroup < task_extent(params, task).halves;
  uint8_t* destination[kRounds];
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int token = round * kStagedTokens + 4 * lane + warp;
    destination[round] = has_rows && lane < kStagedTokens / 4 && token < task.count ? contribution_of(params, task, token, warpgroup) : nullptr;
  }
  const uint32_t begin = kContributionsBegin + warpgroup * kStagedBytes;
  prepare_staging(smem, rings, warpgroup * 128 + thread);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    constexpr int kLast = kTokens - (kRounds - 1) * kStagedTokens;
    const int tokens = round == kRounds - 1 ? kLast : kStagedTokens;
    ptx::named_barrier_sync(barrier, 128);  // what was staged before has been read
    if (round == 0) rings.release(lane);
#pragma unroll
    for (int group = 0; group < tokens / 8; ++group) {
#pragma unroll
      for (int m = 0; m < kRowBlocks; ++m) {
        const float* value = &sums.value[m][4 * (round * kStagedTokens / 8 + group)];
        const float s[4] = {value[0], value[1], value[2], value[3]};
        stage_eight_tokens(smem.expanded_at() + begin, group * 8, 64 * m + 16 * warp, s, task.multiplier[0], lane);
      }
    }
    ptx::named_barrier_sync(barrier, 128);
    if (round == kRounds - 1) send_staged<kLast>(smem.staging() + begin, destination[round], warp, lane);
    else send_staged<kStagedTokens>(smem.staging() + begin, destination[round], warp, lane);
  }
}

}  // namespace monomoe::cuda
