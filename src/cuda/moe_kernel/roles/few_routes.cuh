// The route lists of a small call, by one thread block: every route stays in shared memory between counting and placing. The loops are rolled: their instructions
// come from memory too, and a small call should wait for few of them.
#pragma once

#include "cuda/moe_kernel/roles/route_lists.cuh"

namespace monomoe::cuda {

// The sequence of all routes: where each source's begin in it; and what is known of each, by its number.
struct FewRoutes {
  uint32_t first[kMaxRanks + 1];
  int16_t slot[kFewRoutes];  // -1: not served here
  float weight[kFewRoutes];
};
static_assert(kMaxExperts <= INT16_MAX);

// The source of a route, from one that is not later.
__device__ __forceinline__ uint32_t source_of(const FewRoutes& few, uint32_t number, uint32_t source) {
#pragma unroll 1
  while (number >= few.first[source + 1]) ++source;
  return source;
}

// One warp. Returns the number of routes of all sources, in all lanes; `few` is filled if they are few.
__device__ __forceinline__ int64_t add_up_routes(const Params& params, FewRoutes& few, int lane) {
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  const auto ranks = static_cast<int>(params.problem.ranks);
  int64_t total = 0;
#pragma unroll 1
  for (int base = 0; base < ranks; base += 32) {
    const int src = base + lane;
    const int64_t own = src < ranks ? static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * params.problem.topk : 0;
    int64_t to = own;
#pragma unroll 1
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
#pragma unroll 1
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
__device__ __forceinline__ void list_few_routes(const Params& params, FewRoutes& few, uint32_t* counts, uint32_t* totals, uint64_t epoch, int math_thread) {
  constexpr int kBatch = 4;  // loads of a thread under way
  const Problem& p = params.problem;
  const int warp = math_thread / 32, lane = math_thread % 32;
  const uint32_t total = few.first[p.ranks], topk = static_cast<uint32_t>(p.topk);
  const uint32_t begin = total * warp / kMathWarps, end = total * (warp + 1) / kMathWarps;
  uint32_t* own = counts + warp * params.num_slots;
#pragma unroll 1
  for (int slot = lane; slot < params.num_slots; slot += 32) own[slot] = 0;
  __syncwarp();
  const uint8_t* symmetric = params.peers[params.self];
  uint32_t source = 0;
#pragma unroll 1
  for (uint32_t first = begin; first < end; first += 32 * kBatch) {
    int32_t id[kBatch];
    float weight[kBatch];
    uint32_t from[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const uint32_t number = first + 32 * n + lane;
      id[n] = -1;
      weight[n] = 0.0f;
      if (number < end) {
        source = source_of(few, number, source);
        const int64_t place = source * p.capacity * topk + number - few.first[source];
        id[n] = __ldcg(reinterpret_cast<const int32_t*>(symmetric + params.symmetric.route_ids) + place);
        weight[n] = __ldcg(reinterpret_cast<const float*>(symmetric + params.symmetric.route_weights) + place);
      }
      from[n] = source;
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) id[n] = id[n] >= 0 ? __ldg(params.serving + from[n] * p.experts + id[n]) : -1;
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const uint32_t number = first + 32 * n + lane;
      const int32_t slot = id[n] >= 0 && (id[n] >> 16) == params.self ? id[n] & 0xFFFF : -1;
      if (number < end) {
        few.slot[number] = static_cast<int16_t>(slot);
        few.weight[number] = weight[n];
      }
      if (slot >= 0) atomicAdd(own + slot, 1u);
    }
  }
  math_barrier();
  uint32_t listed = 0;
  if (warp == 0) {
    scan_warps(params, counts, totals, lane);
    listed = place_experts(params, totals, lane);
  }
  math_barrier();
#pragma unroll 1
  for (int s = lane; s < params.num_slots; s += 32) own[s] += totals[s];
  __syncwarp();
  auto* routes = reinterpret_cast<Route*>(params.workspace + params.local.routes);
  source = 0;
#pragma unroll 1
  for (uint32_t first = begin; first < end; first += 32) {
    const uint32_t number = first + lane;
    const int slot = number < end ? few.slot[number] : -1;
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, slot), before = same & ((1u << lane) - 1);
    const uint32_t place = slot >= 0 ? own[slot] : 0;
    __syncwarp();
    if (slot >= 0) {
      source = source_of(few, number, source);
      const uint32_t at = number - few.first[source], token = at / topk;
      routes[place + __popc(before)] = {static_cast<int32_t>(source), static_cast<int32_t>(token), static_cast<int32_t>(at - token * topk), few.weight[number]};
      if (before == 0) own[slot] = place + __popc(same);
    }
    __syncwarp();
  }
  math_barrier();
  if (math_thread == 0) publish_routes(params, listed, epoch);
}

}  // namespace monomoe::cuda
