// Task: routes - one thread block builds the rank's route lists in the canonical order (source rank, token, slot), by counting. Each math warp
// has a stretch of the sequence of all routes: it counts, the counts become places, and it goes over its stretch again.
#pragma once

#include "cuda/moe_kernel/roles/dispatch.cuh"

namespace monomoe::cuda {

// Warps that count: their tables of num_slots counters share the staging.
__device__ __forceinline__ int counting_warps(int num_slots) { return num_slots <= 512 ? kMathWarps : kMathWarps / 2; }

// Calls visit(valid, slot, route) for 32 routes at a time, in order, lanes in order.
template <class Visit>
__device__ __forceinline__ void visit_stretch(const Params& params, int64_t begin, int64_t end, int lane, Visit visit) {
  const Problem& p = params.problem;
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  const uint8_t* own = params.peers[params.self];
  const auto* ids = reinterpret_cast<const int32_t*>(own + params.symmetric.route_ids);
  const auto* weights = reinterpret_cast<const float*>(own + params.symmetric.route_weights);
  int64_t first = 0;  // number of the first route of source src
  for (int src = 0; src < p.ranks; ++src) {
    const int64_t count = static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * p.topk;
    const int64_t from = max_of(begin - first, 0), to = min_of(end - first, count);
    for (int64_t i = from; i < to; i += 32) {
      const int64_t at = i + lane;
      int slot = -1;
      Route route{src, 0, 0, 0.0f};
      if (at < to) {
        const int64_t place = src * p.capacity * p.topk + at;
        const int32_t id = __ldcg(ids + place);
        if (id >= 0) {
          const int32_t copy = __ldg(params.serving + src * p.experts + id);
          if ((copy >> 16) == params.self) slot = copy & 0xFFFF;
        }
        route.token = static_cast<int32_t>(at / p.topk);
        route.topk_slot = static_cast<int32_t>(at % p.topk);
        route.weight = __ldcg(weights + place);
      }
      visit(slot, route);
    }
    first += count;
  }
}

__device__ __forceinline__ bool await_arrived(const Params& params, uint64_t epoch, int lane) {
  bool ok = true;
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  for (int src = lane; src < params.problem.ranks; src += 32) {
    ok &= await_at_least(
        params, [&] { return ptx::load_acquire_system(&flags->arrived[src]); }, epoch, TaskKind::kRoutes, WaitFlag::kArrived,
        static_cast<uint64_t>(src), 0);
    const uint64_t tag = ptx::load_relaxed_system(&flags->layer[src]);
    if (ok && tag != params.layer_tag) {
      raise_error(params, DeviceErrorCode::kLayerMismatch, TaskKind::kRoutes, WaitFlag::kLayer, static_cast<uint64_t>(src), params.layer_tag, tag, 0);
      ok = false;
    }
  }
  return __all_sync(0xFFFFFFFFu, ok);
}

// Counters of all warps -> places in the list, where every expert begins at a multiple of eight; the list of blocks. One warp.
__device__ __forceinline__ void place_counters(const Params& params, uint32_t* counters, int warps, int lane) {
  auto* expert_begin = reinterpret_cast<int64_t*>(params.workspace + params.local.expert_begin);
  auto* block_begin = reinterpret_cast<int64_t*>(params.workspace + params.local.block_begin);
  auto* block_done = reinterpret_cast<uint32_t*>(params.workspace + params.local.block_done);
  auto* block_arranged = reinterpret_cast<uint32_t*>(params.workspace + params.local.block_arranged);
  auto* infos = reinterpret_cast<BlockInfo*>(params.workspace + params.local.blocks);
  int64_t rows = 0, blocks = 0;
  bool many = false;
  for (int base = 0; base < params.num_slots; base += 32) {
    const int slot = base + lane;
    int64_t count = 0;
    for (int w = 0; w < warps && slot < params.num_slots; ++w) count += counters[w * params.num_slots + slot];
    const int64_t own_blocks = ceil_div(count, kGpuTokenBlock), own_rows = round_up(count, kRowGroup);
    many |= count > kFewTokens;
    int64_t rows_to = own_rows, blocks_to = own_blocks;
    for (int step = 1; step < 32; step *= 2) {
      const int64_t r = __shfl_up_sync(0xFFFFFFFFu, rows_to, step), b = __shfl_up_sync(0xFFFFFFFFu, blocks_to, step);
      if (lane >= step) {
        rows_to += r;
        blocks_to += b;
      }
    }
    if (slot < params.num_slots) {
      int64_t place = rows + rows_to - own_rows;
      expert_begin[slot] = place;
      int64_t block = blocks + blocks_to - own_blocks;
      block_begin[slot] = block;
      for (int64_t done = 0; done < count; done += kGpuTokenBlock, ++block) {
        infos[block] = {place + done, slot, static_cast<int32_t>(min_of(count - done, kGpuTokenBlock))};
        block_done[block] = 0;
        block_arranged[block] = 0;
      }
      for (int w = 0; w < warps; ++w) {
        const uint32_t n = counters[w * params.num_slots + slot];
        counters[w * params.num_slots + slot] = static_cast<uint32_t>(place);
        place += n;
      }
    }
    rows += __shfl_sync(0xFFFFFFFFu, rows_to, 31);
    blocks += __shfl_sync(0xFFFFFFFFu, blocks_to, 31);
  }
  many = __any_sync(0xFFFFFFFFu, many);
  if (lane == 0) {
    expert_begin[params.num_slots] = rows;
    block_begin[params.num_slots] = blocks;
    params.state->arranges = many ? 1 : 0;
  }
}

template <class C>
__device__ __forceinline__ void routes_task(const Params& params, SharedStorage<C>& smem, uint64_t epoch, int64_t num_tokens, int math_thread) {
  const Problem& p = params.problem;
  const int warp = math_thread / 32, lane = math_thread % 32;
  if (num_tokens == 0 && warp == 0 && await_drained(params, epoch, lane) && lane == 0) publish_arrived(params, epoch, 0);
  const bool all_here = await_arrived(params, epoch, lane);
  const int warps = counting_warps(params.num_slots);
  auto* counters = reinterpret_cast<uint32_t*>(smem.staging());
  math_barrier();
  for (int i = math_thread; i < warps * params.num_slots; i += kMathThreads) counters[i] = 0;
  math_barrier();
  int64_t total = 0;
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  for (int src = 0; src < p.ranks && all_here; ++src) total += static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * p.topk;
  const int64_t begin = total * warp / warps, end = warp < warps && all_here ? total * (warp + 1) / warps : begin;
  uint32_t* own = counters + warp * params.num_slots;
  visit_stretch(params, begin, end, lane, [&](int slot, const Route&) {
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, slot);
    if (slot >= 0 && lane == __ffs(same) - 1) own[slot] += __popc(same);
    __syncwarp();
  });
  math_barrier();
  if (warp == 0) place_counters(params, counters, warps, lane);
  math_barrier();
  auto* routes = reinterpret_cast<Route*>(params.workspace + params.local.routes);
  visit_stretch(params, begin, end, lane, [&](int slot, const Route& route) {
    const uint32_t same = __match_any_sync(0xFFFFFFFFu, slot);
    const uint32_t before = __popc(same & ((1u << lane) - 1));
    if (slot >= 0) routes[own[slot] + before] = route;
    __syncwarp();
    if (slot >= 0 && lane == __ffs(same) - 1) own[slot] += __popc(same);
    __syncwarp();
  });
  math_barrier();
  if (math_thread != 0 || !all_here) return;
  __threadfence();
  const auto* block_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin);
  if (__ldcg(block_begin + params.num_slots) == 0) publish_drained(params, epoch);
  ptx::store_release_gpu(&params.state->routes_ready, epoch);
}

}  // namespace monomoe::cuda
