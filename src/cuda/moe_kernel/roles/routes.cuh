// Task: routes - builds the rank's route lists in the canonical order (source rank, token, slot), by counting. Each math warp of each task has a
// stretch of the sequence of all routes: it counts, the counts become places, and it goes over its stretch again. Few routes are one task's.
#pragma once

#include "cuda/moe_kernel/roles/few_routes.cuh"

namespace monomoe::cuda {

// A thread block's counters [warp][slot] and totals [slot] lie in the memory of the token stages: no GEMM is under way yet.
static_assert(((kMathWarps + 1) * kMaxExperts + 1) * sizeof(uint32_t) + sizeof(FewRoutes) <= kUnits * kUnitBytes * 3, "the counters of the most experts fit the token stages");

// The lanes whose slot is this lane's; slots are below 2^bits - 1, and -1 is one of its own.
__device__ __forceinline__ uint32_t same_slot_lanes(int slot, int bits) {
  uint32_t same = 0xFFFFFFFFu;
  for (int bit = 0; bit < bits; ++bit) {
    const bool set = (slot >> bit & 1) != 0;
    const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, set);
    same &= set ? lanes : ~lanes;
  }
  return same;
}

// Calls visit(slot, route) for 32 routes at a time, in order, lanes in order; slot -1: not served here. Ids come in batches, since each load and each
// look-up of the serving rank takes long.
template <class Visit>
__device__ __forceinline__ void visit_stretch(const Params& params, int64_t begin, int64_t end, int lane, Visit visit) {
  constexpr int kBatch = 4;
  const Problem& p = params.problem;
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  const uint8_t* own = params.peers[params.self];
  const int topk = static_cast<int>(p.topk);
  int64_t first = 0;  // number of the first route of source src
  for (int src = 0; src < p.ranks && first < end; ++src) {
    const int64_t count = static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * topk;
    const int64_t from = max_of(begin - first, 0), to = min_of(end - first, count);
    const auto* ids = reinterpret_cast<const int32_t*>(own + params.symmetric.route_ids) + src * p.capacity * topk;
    const auto* weights = reinterpret_cast<const float*>(own + params.symmetric.route_weights) + src * p.capacity * topk;
    for (int64_t i = from; i < to; i += 32 * kBatch) {
      int32_t slot[kBatch];
      float weight[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int64_t at = i + 32 * n + lane;
        slot[n] = at < to ? __ldcg(ids + at) : -1;
        weight[n] = at < to ? __ldcg(weights + at) : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int32_t copy = slot[n] >= 0 ? __ldg(params.serving + src * p.experts + slot[n]) : -1;
        slot[n] = copy >= 0 && (copy >> 16) == params.self ? copy & 0xFFFF : -1;
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        if (i + 32 * n >= to) break;
        const int at = static_cast<int>(i) + 32 * n + lane;
        visit(slot[n], Route{src, at / topk, at % topk, weight[n]});
      }
    }
    first += count;
  }
}

// Warps that have a stretch; their counters are rows [warp][slot] in the workspace.
__device__ __forceinline__ uint32_t* count_row(const Params& params, int64_t warp) {
  return reinterpret_cast<uint32_t*>(params.workspace + params.local.route_counts) + warp * params.num_slots;
}

// Each expert's counts -> places among its own routes; places[slot]: how many it has. A warp has an expert at a time, its lanes the rows.
__device__ __forceinline__ void scan_counts(const Params& params, uint32_t* places, int rows, int warp, int lane) {
  constexpr int kMost = kRouteTasks * kMathWarps / 32;
  for (int slot = warp; slot < params.num_slots; slot += kMathWarps) {
    uint32_t count[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i) count[i] = 32 * i + lane < rows ? __ldcg(count_row(params, 32 * i + lane) + slot) : 0;
    uint32_t before = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      uint32_t to = count[i];
      for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xFFFFFFFFu, to, step);
        if (lane >= step) to += other;
      }
      if (32 * i + lane < rows) count_row(params, 32 * i + lane)[slot] = before + to - count[i];
      before += __shfl_sync(0xFFFFFFFFu, to, 31);
    }
    if (lane == 0) places[slot] = before;
  }
}

// The routes of all sources, and how they are cut.
struct RouteSequence {
  int64_t total;
  int tasks;
  int bits;  // of a slot, with one value to spare
};
__device__ __forceinline__ int64_t all_routes(const Params& params) {
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  int64_t total = 0;
  for (int src = 0; src < params.problem.ranks; ++src) total += static_cast<int64_t>(ptx::load_relaxed_system(&flags->num_tokens[src])) * params.problem.topk;
  return total;
}

// Counts the stretches of task `task`'s warps.
__device__ __forceinline__ void count_routes(const Params& params, uint32_t* counts, const RouteSequence& routes, int task, int math_thread) {
  const int warp = math_thread / 32, lane = math_thread % 32;
  const int64_t row = task * kMathWarps + warp, rows = routes.tasks * kMathWarps;
  uint32_t* own = counts + warp * params.num_slots;
  for (int slot = lane; slot < params.num_slots; slot += 32) own[slot] = 0;
  __syncwarp();
  visit_stretch(params, routes.total * row / rows, routes.total * (row + 1) / rows, lane, [&](int slot, const Route&) {
    if (slot >= 0) atomicAdd(own + slot, 1u);
  });
  __syncwarp();
  for (int slot = lane; slot < params.num_slots; slot += 32) count_row(params, row)[slot] = own[slot];
}

// Writes the routes of the stretches of task `task`'s warps where they belong.
__device__ __forceinline__ void place_routes(const Params& params, uint32_t* counts, const RouteSequence& sequence, int task, int math_thread) {
  const int warp = math_thread / 32, lane = math_thread % 32;
  const int64_t row = task * kMathWarps + warp, rows = sequence.tasks * kMathWarps;
  const auto* expert_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.expert_begin);
  uint32_t* own = counts + warp * params.num_slots;
  for (int slot = lane; slot < params.num_slots; slot += 32) {
    own[slot] = __ldcg(count_row(params, row) + slot) + static_cast<uint32_t>(__ldcg(reinterpret_cast<const long long*>(expert_begin) + slot));
  }
  __syncwarp();
  auto* routes = reinterpret_cast<Route*>(params.workspace + params.local.routes);
  visit_stretch(params, sequence.total * row / rows, sequence.total * (row + 1) / rows, lane, [&](int slot, const Route& route) {
    const uint32_t same = same_slot_lanes(slot, sequence.bits), before = same & ((1u << lane) - 1);
    const uint32_t place = slot >= 0 ? own[slot] : 0;
    __syncwarp();
    if (slot >= 0) routes[place + __popc(before)] = route;
    if (slot >= 0 && before == 0) own[slot] = place + __popc(same);
    __syncwarp();
  });
}

// Whether this thread block is the last of `tasks` to come here. All math threads; what the others wrote before is visible after it.
__device__ __forceinline__ bool is_last(uint64_t* counter, int tasks, uint32_t* shared, int math_thread) {
  math_barrier();
  if (math_thread == 0) {
    *shared = ptx::fetch_add_acq_rel_gpu(counter, 1) + 1 == static_cast<uint64_t>(tasks);
    ptx::fence_gpu();
  }
  math_barrier();
  return *shared != 0;
}

__device__ __forceinline__ uint32_t tasks_of_many(const Params& params) {
  constexpr int64_t kRoutesOfTask = 1024;
  return static_cast<uint32_t>(max_of(2, min_of(ceil_div(all_routes(params), kRoutesOfTask), kRouteTasks)));
}

// How many tasks share the routes of this call; 1: task 0 lists them alone; 0: the rank gave up. Task 0 looks at the sources' flags and tells the
// others, which must not look: a task without work may run late, when a source has been told that its rows are drained and has begun its next
// call. All math threads.
__device__ __forceinline__ int plan_routes(const Params& params, int64_t index, uint64_t epoch, FewRoutes& few, uint32_t* shared, int math_thread) {
  const int lane = math_thread % 32;
  math_barrier();  // the memory of an earlier routes task is free
  if (math_thread < 32) {
    uint32_t tasks = 0;
    if (index == 0) {
      if (await_ids(params, epoch, lane)) tasks = add_up_routes(params, few, lane) <= kFewRoutes ? 1 : tasks_of_many(params);
      if (tasks != 0 && lane == 0) {
        ptx::fence_gpu();
        ptx::store_relaxed_gpu(&params.state->routes_planned, epoch << 8 | tasks);
      }
    } else if (lane == 0) {
      const uint64_t* planned = &params.state->routes_planned;
      const bool told = await_at_least(
          params, [&] { return ptx::load_acquire_gpu(planned); }, epoch << 8, TaskKind::kRoutes, WaitFlag::kRoutesReady,
          static_cast<uint64_t>(params.self), 0);
      if (told) tasks = static_cast<uint32_t>(ptx::load_acquire_gpu(planned) & 0xFF);
    }
    if (lane == 0) *shared = tasks;
  }
  math_barrier();
  return static_cast<int>(*shared);
}
static_assert(kRouteTasks < 256, "the number of tasks has eight bits beside the epoch");

// A part of a large call's routes, of `tasks` twice. Tasks below kRouteTasks count, and the last to finish makes the counts places; the others place the routes.
__device__ __forceinline__ void list_part(const Params& params, uint32_t* counts, uint32_t* totals, uint32_t* shared, int64_t index, int tasks, uint64_t epoch,
                                          int math_thread) {
  const int warp = math_thread / 32, lane = math_thread % 32;
  const bool places = index >= kRouteTasks;
  const int task = static_cast<int>(places ? index - kRouteTasks : index);
  if (task >= tasks) return;  // and must not look at the sources' flags
  const RouteSequence routes{all_routes(params), tasks, 32 - __clz(params.num_slots)};
  if (!places) {
    count_routes(params, counts, routes, task, math_thread);
    if (!is_last(&params.state->counted, routes.tasks, shared, math_thread)) return;
    scan_counts(params, totals, routes.tasks * kMathWarps, warp, lane);
    math_barrier();
    if (warp == 0) {
      const uint32_t listed = place_experts(params, totals, lane);
      if (lane == 0) params.state->listed = listed;
    }
    math_barrier();
    if (math_thread != 0) return;
    ptx::fence_gpu();
    ptx::store_relaxed_gpu(&params.state->routes_counted, epoch);
    return;
  }
  // One thread waits for all: whether the counts came or the rank gave up, they do the same. A part that is not placed is not counted as placed, so that lists with
  // holes are never published.
  math_barrier();  // all have read what *shared told before
  if (math_thread == 0) {
    *shared = await_at_least(
        params, [&] { return ptx::load_acquire_gpu(&params.state->routes_counted); }, epoch, TaskKind::kRoutes, WaitFlag::kRoutesReady,
        static_cast<uint64_t>(params.self), 0);
  }
  math_barrier();
  if (*shared == 0) return;
  place_routes(params, counts, routes, task, math_thread);
  if (!is_last(&params.state->placed, routes.tasks, shared, math_thread)) return;
  if (math_thread == 0) publish_routes(params, static_cast<uint32_t>(__ldcg(reinterpret_cast<const unsigned long long*>(&params.state->listed))), epoch);
}

template <class C>
__device__ __forceinline__ void routes_task(const Params& params, SharedStorage<C>& smem, int64_t index, uint64_t epoch, int64_t num_tokens, int math_thread) {
  const int warp = math_thread / 32, lane = math_thread % 32;
  if (index == 0 && num_tokens == 0 && warp == 0 && await_drained(params, epoch, lane) && lane == 0) publish_arrived(params, epoch);
  auto* counts = reinterpret_cast<uint32_t*>(smem.tokens);
  uint32_t* totals = counts + kMathWarps * params.num_slots;
  uint32_t* shared = totals + params.num_slots;
  auto& few = *reinterpret_cast<FewRoutes*>(shared + 1);
  const int tasks = plan_routes(params, index, epoch, few, shared, math_thread);
  if (tasks > 1) list_part(params, counts, totals, shared, index, tasks, epoch, math_thread);
  else if (tasks == 1 && index == 0) list_few_routes(params, few, counts, totals, epoch, math_thread);
  ptx::fence_proxy_async_smem();  // bulk copies write here next
}

}  // namespace monomoe::cuda
