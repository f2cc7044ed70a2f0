// Role: claim - one thread of the moving warpgroup (warp 0). It runs ahead of the others by the length of the queue.
// Waits on:  queue_empty (weights, gather, math), routes_ready (routes task, gpu scope)
// Signals:   queue_full
// Reads:     route lists, expert headers       Writes: smem.queue
// Ends when: the tickets are exhausted or the rank is aborted; an end task tells the other roles.
#pragma once

#include "cuda/moe_kernel/phase.cuh"
#include "cuda/moe_kernel/shared_storage.cuh"
#include "cuda/moe_kernel/waits.cuh"
#include "plan/ring.h"
#include "plan/task_order.h"

namespace monomoe::cuda {

// Tokens of one dispatch or combine task: one per math warp, or one for all of them while there are thread blocks enough.
__device__ __forceinline__ int64_t token_chunk(int64_t num_tokens) { return num_tokens <= 2 * gridDim.x ? 1 : kMathWarps; }

__device__ __forceinline__ bool is_gemm(TaskKind kind) { return kind == TaskKind::kGemm1 || kind == TaskKind::kGemm2; }

__device__ __forceinline__ void wait_barrier(uint64_t& barrier, uint32_t phase) {
  const uint32_t address = ptx::smem_address(&barrier);
  while (!ptx::mbarrier_try_wait(address, phase)) {
  }
}

// The block's routes and expert, and the expert's multipliers and shifts.
__device__ __forceinline__ void describe_block(const Params& params, int64_t block, BlockTask& task) {
  const int4 words = __ldcg(reinterpret_cast<const int4*>(params.workspace + params.local.blocks) + block);
  task.route_begin = static_cast<int64_t>(static_cast<uint32_t>(words.x)) | static_cast<int64_t>(words.y) << 32;
  task.slot = words.z;
  task.count = words.w;
  task.block = block;
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(params.slot_data[task.slot]);
  const bool down = static_cast<TaskKind>(task.kind) == TaskKind::kGemm2;
  task.multiplier[0] = down ? header->down_multiplier : header->gate_multiplier;
  task.multiplier[1] = down ? header->down_multiplier : header->up_multiplier;
  task.shift[0] = down ? header->down_shift : header->gate_shift;
  task.shift[1] = down ? header->down_shift : header->up_shift;
}

template <class C>
__device__ __forceinline__ void claim_role(const Params& params, SharedStorage<C>& smem, uint64_t epoch, int64_t num_tokens) {
  TaskCounts counts;
  counts.token_chunks = ceil_div(num_tokens, token_chunk(num_tokens));
  counts.gemm1_tiles = params.problem.intermediate_blocks();
  counts.gemm2_tiles = gemm2_tiles(params.problem.hidden);
  bool routes_known = false;
  auto queue = RingCursor<kQueueSlots>::producer();
  for (bool more = true; more;) {
    wait_barrier(smem.queue_empty[queue.slot], queue.phase);
    const int64_t ticket = static_cast<int64_t>(ptx::fetch_add_relaxed_gpu(&params.state->next_task, 1));
    if (ticket >= counts.before_gemms() && !routes_known) {
      more = await_at_least(
          params, [&] { return ptx::load_acquire_gpu(&params.state->routes_ready); }, epoch, TaskKind::kGemm1, WaitFlag::kRoutesReady,
          static_cast<uint64_t>(params.self), 0);
      routes_known = true;
      if (more) counts.blocks = __ldcg(reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin) + params.num_slots);
    }
    Task claimed = more ? task_at(counts, ticket) : Task{};
    if (!is_of_this_launch(params, claimed.kind)) claimed = {};
    BlockTask& task = smem.queue[queue.slot];
    task.kind = static_cast<int32_t>(claimed.kind);
    task.index = claimed.index;
    task.tile = static_cast<int32_t>(claimed.tile);
    if (is_gemm(claimed.kind)) describe_block(params, claimed.block, task);
    ptx::mbarrier_arrive(ptx::smem_address(&smem.queue_full[queue.slot]));
    queue.advance();
    more = claimed.kind != TaskKind::kNone;
  }
}

}  // namespace monomoe::cuda
