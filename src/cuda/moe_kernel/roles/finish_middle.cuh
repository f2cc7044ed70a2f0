// What the side warps do with results of up to 128 tokens, a half of the tile at a time. Two tokens of a warp side by side, 16 lanes each.
#pragma once

#include "cuda/moe_kernel/roles/finish.cuh"
#include "cuda/moe_kernel/roles/middle_tokens_epilogue.cuh"

namespace monomoe::cuda {

inline constexpr int kLanesOfToken = 16, kTokensAtOnce = 32 / kLanesOfToken;
static_assert(kMiddleTokens / kSideWarps <= 32, "a lane knows one token of its warp");

// SwiGLU of the first half, until the second is there: 64 channels of a token, a lane four. The same thread writes and reads. Behind what many tokens keep.
__device__ __forceinline__ float4* kept_channels(const Params& params, int token, int lane) {
  return reinterpret_cast<float4*>(params.scratch) + (gridDim.x * kManyScratchBytes + blockIdx.x * kMiddleScratchBytes) / 16 + token * kLanesOfToken + lane % kLanesOfToken;
}

// A lane's channels are 32b + 4q + 0..3 of the half's 64, b = lane % 2, q = lane / 2 % 8: word 2 * half + b of 16-byte piece q of the token's codes (numerics/tensor_core.h).
template <class C>
__device__ __forceinline__ void finish_middle_gemm1(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int warp, int lane) {
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int own = token_of_warp<kGemm1HalfTokens>(warp, lane);
  const float weight = own < task.count ? __ldcg(&routes[task.route_begin + own].weight) : 0.0f;
  uint8_t* codes = mid_codes(params, task) + mid_row(task, task.tile, 0);
  float* scales = mid_scales(params, task) + task.tile * block_rows(task);
  const int piece = lane / 2 % 8, word = lane % 2, channel = 32 * word + 4 * piece;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    take_results<kGemm1HalfTokens, kTokensAtOnce>(smem, task, rings, lane, [&](uint32_t slot, int i) {
      const int mine = i + lane / kLanesOfToken, row = token_of_warp<kGemm1HalfTokens>(warp, mine);
      const FourChannels v = load_four_channels(slot + gate_up_place<kHalfRows>(row % kGemm1HalfTokens, channel));
      const bool live = row < task.count;
      float h[4];
      swiglu_all([&](int k) { return live ? scaled(task, v, k) : GateUp{1.0f, 1.0f}; }, params.swiglu_limit, h);
      if (half == 0) {
        if (live) __stcg(kept_channels(params, row, lane), make_float4(h[0], h[1], h[2], h[3]));
        return;
      }
      const float4 kept = live ? __ldcg(kept_channels(params, row, lane)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      const float first[4] = {kept.x, kept.y, kept.z, kept.w};
      uint32_t largest = 0;
#pragma unroll
      for (int k = 0; k < 4; ++k) largest = max(largest, max(magnitude_bits(h[k]), magnitude_bits(first[k])));
#pragma unroll
      for (int step = 1; step < kLanesOfToken; step *= 2) largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
      const bool finite = largest < kFp32InfinityBits;
      const ActivationScale s = activation_scale(bits_float(largest), finite);
      const float own_weight = __shfl_sync(0xFFFFFFFFu, weight, mine);
      if (!live) return;
      auto* to = reinterpret_cast<uint32_t*>(codes + row * kBlockK + ((piece ^ (row & 7)) << 4)) + word;
      to[0] = encode_four(first, s.inverse, finite);
      to[2] = encode_four(h, s.inverse, finite);
      if (lane % kLanesOfToken == 0) scales[row] = route_scale(s.scale, own_weight);
    });
  }
}

template <class C>
__device__ __forceinline__ void finish_middle_gemm2(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int warp, int lane) {
  const int own = token_of_warp<kGemm2HalfTokens>(warp, lane), chunk = lane % kLanesOfToken;
  uint8_t* destination = own < task.count ? contribution_of(params, task, own) : nullptr;
  const int halves = task_extent(params, task).halves;
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    take_results<kGemm2HalfTokens, kTokensAtOnce>(smem, task, rings, lane, [&](uint32_t slot, int i) {
      const int mine = i + lane / kLanesOfToken, token = token_of_warp<kGemm2HalfTokens>(warp, mine) % kGemm2HalfTokens;
      auto* row = reinterpret_cast<uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(destination), mine));
      if (row == nullptr) return;
      *reinterpret_cast<uint4*>(row + half * (kHalfRows * 2) + chunk * 16) = ptx::load_shared_16(slot + token * (kHalfRows * 2) + ((chunk ^ (token & 7)) << 4));
    });
  }
}

}  // namespace monomoe::cuda
