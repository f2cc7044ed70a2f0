// The route lists of a small call, by one thread block: every route stays in registers between counting and placing.
#pragma once

#include "cuda/moe_kernel/roles/route_lists.cuh"

namespace monomoe::cuda {

inline constexpr int kRoutesOfThread = 8;
inline constexpr int64_t kFewRoutes = kRoutesOfThread * kMathThreads;

// The sequence of all routes: where each source's begin in it.
struct FewRoutes {
  uint32_t first[kMaxRanks + 1];
};

// One warp. Returns the number of routes of all sources, in all lanes; `few` is filled if they are few.
__device__ __forceinline__ int64_t add_up_routes(const Params& params, FewRoutes& few, int lane) {
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  const auto ranks = static_cast<int>(params.problem.ranks);
  int64_t total = 0;
  for (int base = 0; base < ranks; base += 32) {
    const int src = base + lane;
    const int64_t own = src < ranks ? static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * params.problem.topk : 0;
    int64_t to = own;
    for (int step = 1; step < 32; step *= 2) {
      const int64_t other = __shfl_up_sync(0xFFFFFFFFu, to, step);
      if (lane >= step) to += other;
    }
    if (src < ranks) few.first[src] = static_cast<uint32_t>(total + to - own);
    total += __shfl_sync(0xFFFFFFFFu, to, 31);
  }
  if (lane == 0) few.first[ranks] = static_cast<uint32_t>(total);
  return total;
}

// Each expert's counts of the warps -> places among its routes, and how many it has. One warp.
__device__ __forceinline__ void scan_warps(const Params& params, uint32_t* counts, uint32_t* totals, int lane) {
  for (int slot = lane; slot < params.num_slots; slot += 32) {
    uint32_t count[kMathWarps], before = 0;
#pragma unroll
    for (int warp = 0; warp < kMathWarps; ++warp) count[warp] = counts[warp * params.num_slots + slot];
#pragma unroll
    for (int warp = 0; warp < kMathWarps; ++warp) {
      counts[warp * params.num_slots + slot] = before;
      before += count[warp];
    }
    totals[slot] = before;
  }
  __syncwarp();
}

// counts: [warp][slot], totals: [slot], in shared memory. All math threads.
__device__ __forceinline__ void list_few_routes(const Params& params, const FewRoutes& few, uint32_t* counts, uint32_t* totals, uint64_t epoch,
                                                int math_thread) {
  const Problem& p = params.problem;
  const int warp = math_thread / 32, lane = math_thread % 32;
  const uint32_t total = few.first[p.ranks], topk = static_cast<uint32_t>(p.topk);
  const uint32_t begin = total * warp / kMathWarps, end = total * (warp + 1) / kMathWarps;
  uint32_t* own = counts + warp * params.num_slots;
  for (int slot = lane; slot < params.num_slots; slot += 32) own[slot] = 0;
  const uint8_t* symmetric = params.peers[params.self];
  int32_t slot[kRoutesOfThread];
  uint32_t at[kRoutesOfThread], source[kRoutesOfThread];
  float weight[kRoutesOfThread];
  uint32_t src = 0;
#pragma unroll
  for (int n = 0; n < kRoutesOfThread; ++n) {
    const uint32_t number = begin + 32 * n + lane;
    slot[n] = -1;
    weight[n] = 0.0f;
    at[n] = 0;
    if (number < end) {
      while (number >= few.first[src + 1]) ++src;
      at[n] = number - few.first[src];
      const int64_t place = src * p.capacity * topk + at[n];
      slot[n] = __ldcg(reinterpret_cast<const int32_t*>(symmetric + params.symmetric.route_ids) + place);
      weight[n] = __ldcg(reinterpret_cast<const float*>(symmetric + params.symmetric.route_weights) + place);
    }
    source[n] = src;
  }
#pragma unroll
  for (int n = 0; n < kRoutesOfThread; ++n) {
    const int32_t copy = slot[n] >= 0 ? __ldg(params.serving + source[n] * p.experts + slot[n]) : -1;
    slot[n] = copy >= 0 && (copy >> 16) == params.self ? copy & 0xFFFF : -1;
  }
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kRoutesOfThread; ++n) {
    if (slot[n] >= 0) atomicAdd(own + slot[n], 1u);
  }
  math_barrier();
  uint32_t listed = 0;
  if (warp == 0) {
    scan_warps(params, counts, totals, lane);
    listed = place_experts(params, totals, lane);
  }
  math_barrier();
  for (int s = lane; s < params.num_slots; s += 32) own[s] += totals[s];
  __syncwarp();
  auto* routes = reinterpret_cast<Route*>(params.workspace + params.local.routes);
#pragma unroll
  for (int n = 0; n < kRoutesOfThread; ++n) {
    if (begin + 32 * n >= end) break;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, slot[n]), before = same & ((1u << lane) - 1);
    const uint32_t place = slot[n] >= 0 ? own[slot[n]] : 0;
    __syncwarp();
    if (slot[n] >= 0) {
      const uint32_t token = at[n] / topk;
      routes[place + __popc(before)] = {static_cast<int32_t>(source[n]), static_cast<int32_t>(token), static_cast<int32_t>(at[n] - token * topk), weight[n]};
      if (before == 0) own[slot[n]] = place + __popc(same);
    }
    __syncwarp();
  }
  ptx::fence_proxy_async_smem();  // bulk copies write here next
  math_barrier();
  if (math_thread == 0) publish_routes(params, listed, epoch);
}

}  // namespace monomoe::cuda
