// Role: publish - a warp of the moving warpgroup. It tells others what the math and side warps have written, so that these need not wait for fences.
// Waits on:  queue_full (claim), written[slot] (math, side)
// Signals:   block_done, block_arranged, dispatch_done (gpu scope), arrived, drained, arrivals (system scope), queue_empty
// Ends when: the end task is met.
// The writing warps' arrival, this role's wait and its fence put their writes before its signals, for whoever sees those.
#pragma once

#include "cuda/moe_kernel/roles/arrange.cuh"
#include "cuda/moe_kernel/roles/signals.cuh"

namespace monomoe::cuda {

__device__ __forceinline__ void publish_gemm1(const Params& params, const BlockTask& task, uint64_t epoch) {
  ptx::fence_gpu();
  ptx::add_relaxed_gpu(block_done(params, task.block), 1);
  if (params.problem.ranks == 1) return;  // nobody waits for drained rows
  const auto* block_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin);
  const int64_t tasks = __ldcg(block_begin + params.num_slots) * params.problem.intermediate_blocks();
  if (ptx::fetch_add_relaxed_gpu(&params.state->gemm1_done, 1) + 1 != static_cast<uint64_t>(tasks)) return;
  publish_drained(params, epoch);
}

// All lanes.
__device__ __forceinline__ void publish_gemm2(const Params& params, const BlockTask& task, int lane) {
  const auto* routes = reinterpret_cast<const int4*>(params.workspace + params.local.routes) + task.route_begin;
  ptx::fence_system();
  for (int row = lane; row < task.count; row += 32) {
    const int4 route = __ldcg(routes + row);
    ptx::add_relaxed_system(reinterpret_cast<uint32_t*>(params.peers[route.x] + params.symmetric.arrivals) + route.y, 1);
  }
}

__device__ __forceinline__ void publish_dispatch(const Params& params, uint64_t epoch, int64_t num_tokens) {
  ptx::fence_system();
  const uint64_t done = ptx::fetch_add_relaxed_gpu(&params.state->dispatch_done, 1) + 1;
  if (done != static_cast<uint64_t>(dispatch_chunks(num_tokens))) return;
  ptx::fence_system();
  publish_arrived(params, epoch);
}

template <class C>
__device__ __forceinline__ void publish_role(const Params& params, SharedStorage<C>& smem, int lane) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  for (;;) {
    wait_barrier_patiently(smem.queue_full_at(queue.slot), queue.phase);
    const BlockTask& task = smem.queue[queue.slot];
    const auto kind = static_cast<TaskKind>(task.kind);
    if (kind == TaskKind::kNone) return;
    wait_barrier_patiently(smem.written_at(queue.slot), queue.phase);
    if (kind == TaskKind::kGemm2) publish_gemm2(params, task, lane);
    else if (lane == 0 && kind == TaskKind::kGemm1) publish_gemm1(params, task, smem.epoch);
    else if (lane == 0 && kind == TaskKind::kDispatch && !smem.rows_missing) publish_dispatch(params, smem.epoch, smem.num_tokens);
    else if (lane == 0 && kind == TaskKind::kArrange && is_arranged(task)) publish_arranged(params, task, pieces_of_task(task));
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot));
    queue.advance();
  }
}

}  // namespace monomoe::cuda
