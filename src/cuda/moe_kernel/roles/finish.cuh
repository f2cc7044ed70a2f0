// What the side warps do with results of few tokens: GEMM1's go through SwiGLU and become the quantised intermediate in the workspace, GEMM2's go to the memory of
// each token's rank. It is one loop for all numbers of tokens: code that comes from memory the first time costs more than what it computes.
#pragma once

#include "cuda/moe_kernel/roles/few_tokens_epilogue.cuh"
#include "cuda/moe_kernel/roles/swiglu_all.cuh"
#include "numerics/activation_quant.h"

namespace monomoe::cuda {

template <class C>
struct SideRings {
  RingCount<C::kWeightSlots> weights = RingCount<C::kWeightSlots>::consumer();
  RingCount<C::kExpandedSlots> expanded = RingCount<C::kExpandedSlots>::producer();
  RingCount<C::kResultSlots> results = RingCount<C::kResultSlots>::consumer();
};

// Each warp has kSlotTokens / 4 neighbouring tokens of every slot. Which token of the task is its i-th:
template <int kSlotTokens>
__device__ __forceinline__ int token_of_warp(int warp, int i) {
  constexpr int kOwn = kSlotTokens / kSideWarps;
  return i / kOwn * kSlotTokens + warp * kOwn + i % kOwn;
}

// finish(slot address, i) for the warp's tokens, i from 0 on, kAtOnce at a time.
template <int kSlotTokens, int kAtOnce = 1, class C, class Finish>
__device__ __forceinline__ void take_results(SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int lane, const Finish& finish) {
  constexpr int kOwn = kSlotTokens / kSideWarps;
  int i = 0;
#pragma unroll 1
  for (int first = 0; first < task.count; first += kSlotTokens) {
    const uint32_t slot = rings.results.slot();
    wait_barrier_patiently(smem.results_full_at(slot), rings.results.phase());
#pragma unroll 1
    for (int own = 0; own < kOwn; own += kAtOnce, i += kAtOnce) finish(smem.results_at(slot), i);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.results_empty_at(slot));
    rings.results.advance();
  }
}

// Gate and up of four neighbouring channels of a token; place: gate_up_place of the first.
struct FourChannels {
  float gate[4], up[4];
};
__device__ __forceinline__ FourChannels load_four_channels(uint32_t place) {
  const uint4 first = ptx::load_shared_16(place), second = ptx::load_shared_16(place ^ 16);
  return {{bits_float(first.x), bits_float(first.z), bits_float(second.x), bits_float(second.z)},
          {bits_float(first.y), bits_float(first.w), bits_float(second.y), bits_float(second.w)}};
}
__device__ __forceinline__ GateUp scaled(const BlockTask& task, const FourChannels& v, int k) { return {mul_rn(v.gate[k], task.multiplier[0]), mul_rn(v.up[k], task.multiplier[1])}; }

// The four codes of a word.
__device__ __forceinline__ uint32_t encode_four(const float (&h)[4], float inverse, bool finite) {
  const uint32_t word = ptx::encode_e4m3_pair(mul_rn(h[0], inverse), mul_rn(h[1], inverse)) | ptx::encode_e4m3_pair(mul_rn(h[2], inverse), mul_rn(h[3], inverse)) << 16;
  return finite ? word : 0u;
}

// A token's 128 channels, a lane four: those of one word of codes, which are logical k 32t' + 8i + 4h' + b' of physical byte 32i + 16h' + 4t' + b'
// (numerics/tensor_core.h).
template <class C>
__device__ __forceinline__ void finish_gemm1(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int warp, int lane) {
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int own = token_of_warp<kGemm1ResultTokens>(warp, lane);
  const float weight = own < task.count ? __ldcg(&routes[task.route_begin + own].weight) : 0.0f;
  uint8_t* codes = mid_codes(params, task) + mid_row(task, task.tile, 0);
  float* scales = few_mid_scales(params, task, task.tile);
  const int channel = lane % 4 * 32 + lane / 8 * 8 + lane / 4 % 2 * 4;
  take_results<kGemm1ResultTokens>(smem, task, rings, lane, [&](uint32_t slot, int i) {
    const int row = token_of_warp<kGemm1ResultTokens>(warp, i);
    if (row >= task.count) return;
    const FourChannels v = load_four_channels(slot + gate_up_place(row % kGemm1ResultTokens, channel));
    float h[4];
    swiglu_all([&](int k) { return scaled(task, v, k); }, params.swiglu_limit, h);
    const uint32_t largest = __reduce_max_sync(0xFFFFFFFFu, max(max(magnitude_bits(h[0]), magnitude_bits(h[1])), max(magnitude_bits(h[2]), magnitude_bits(h[3]))));
    const bool finite = largest < kFp32InfinityBits;
    const ActivationScale s = activation_scale(bits_float(largest), finite);
    *reinterpret_cast<uint32_t*>(codes + row * kBlockK + ((lane / 4 ^ (row & 7)) << 4) + lane % 4 * 4) = encode_four(h, s.inverse, finite);
    const float own_weight = __shfl_sync(0xFFFFFFFFu, weight, i);
    if (lane == 0) scales[row * kUnits] = route_scale(s.scale, own_weight);
  });
}

// Where the tile's rows of a route's contribution go: to the memory of the token's rank.
__device__ __forceinline__ uint8_t* contribution_of(const Params& params, const BlockTask& task, int token) {
  const Problem& p = params.problem;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int4 route = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + token));
  return params.peers[route.x] + params.symmetric.contributions +
         ((static_cast<int64_t>(route.y) * p.topk + route.z) * p.hidden + static_cast<int64_t>(task.tile) * kTileRows) * 2;
}

template <class C>
__device__ __forceinline__ void finish_gemm2(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int warp, int lane) {
  const int own = token_of_warp<kGemm2ResultTokens>(warp, lane);
  uint8_t* destination = own < task.count ? contribution_of(params, task, own) : nullptr;
  const bool has_rows = lane < task_extent(params, task).halves * 16;  // a lane sends eight
  take_results<kGemm2ResultTokens>(smem, task, rings, lane, [&](uint32_t slot, int i) {
    const int token = token_of_warp<kGemm2ResultTokens>(warp, i) % kGemm2ResultTokens;
    auto* row = reinterpret_cast<uint8_t*>(__shfl_sync(0xFFFFFFFFu, reinterpret_cast<unsigned long long>(destination), i));
    if (row == nullptr || !has_rows) return;
    *reinterpret_cast<uint4*>(row + lane * 16) = ptx::load_shared_16(slot + token * (kTileRows * 2) + ((lane ^ (token & 7)) << 4));
  });
}

}  // namespace monomoe::cuda
