// Role: claim - one thread of the moving warpgroup (warp 0).
// Waits on:  queue_empty (math and gather), routes_ready (routes task, gpu scope), empty[stage] (math)
// Signals:   queue_full, full[stage] (bytes of the weights)
// Reads:     packed weights, route lists       Writes: smem.queue, smem.weights
// Ends when: the tickets are exhausted or the rank is aborted; an end task tells the other roles.
#pragma once

#include "cuda/moe_kernel/shared_storage.cuh"
#include "cuda/moe_kernel/waits.cuh"
#include "cuda/ptx/copy.cuh"
#include "plan/ring.h"
#include "plan/task_order.h"

namespace monomoe::cuda {

// Tokens of one dispatch or combine task: one per math warp.
inline constexpr int64_t kGpuTokenChunk = kMathWarps;

__device__ __forceinline__ void wait_barrier(uint64_t& barrier, uint32_t phase) {
  const uint32_t address = ptx::smem_address(&barrier);
  while (!ptx::mbarrier_try_wait(address, phase)) {
  }
}

// Which routes and which expert slot a block is.
__device__ __forceinline__ void describe_block(const Params& params, int64_t block, BlockTask& task) {
  const auto* block_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin);
  const auto* expert_begin = reinterpret_cast<const int64_t*>(params.workspace + params.local.expert_begin);
  int low = 0, high = params.num_slots;  // the last slot whose first block is <= block
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (__ldcg(block_begin + middle) <= block) low = middle; else high = middle;
  }
  task.slot = low;
  task.block = block;
  task.route_begin = __ldcg(expert_begin + low) + (block - __ldcg(block_begin + low)) * kGpuTokenBlock;
  const int64_t left = __ldcg(expert_begin + low + 1) - task.route_begin;
  task.count = static_cast<int32_t>(min_of(left, kGpuTokenBlock));
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(params.slot_data[low]);
  const bool down = static_cast<TaskKind>(task.kind) == TaskKind::kGemm2;
  task.multiplier[0] = down ? header->down_multiplier : header->gate_multiplier;
  task.multiplier[1] = down ? header->down_multiplier : header->up_multiplier;
  task.shift[0] = down ? header->down_shift : header->gate_shift;
  task.shift[1] = down ? header->down_shift : header->up_shift;
}

template <class C>
__device__ __forceinline__ void stream_weights(const Params& params, SharedStorage<C>& smem, const BlockTask& task,
                                               RingCursor<C::kStages>& stage, uint64_t policy) {
  const bool down = static_cast<TaskKind>(task.kind) == TaskKind::kGemm2;
  const int64_t k_blocks = down ? params.experts.down_k_blocks : params.experts.gate_up_k_blocks;
  const int64_t halves = min_of(2, (down ? params.experts.down_halves : params.experts.gate_up_halves) - 2 * task.tile);
  const uint32_t bytes = static_cast<uint32_t>(halves * params.experts.half_bytes);
  const uint8_t* src = params.slot_data[task.slot] +
                       (down ? params.experts.down_half(2 * task.tile, 0) : params.experts.gate_up_half(2 * task.tile, 0));
  for (int64_t k_block = 0; k_block < k_blocks; ++k_block, src += bytes) {
    wait_barrier(smem.empty[stage.slot], stage.phase);
    const uint32_t full = ptx::smem_address(&smem.full[stage.slot]);
    ptx::mbarrier_arrive_expect_tx(full, bytes);
    ptx::bulk_copy(ptx::smem_address(smem.weights[stage.slot]), src, bytes, full, policy);
    stage.advance();
  }
}

template <class C>
__device__ __forceinline__ void claim_role(const Params& params, SharedStorage<C>& smem, uint64_t epoch, int64_t num_tokens) {
  TaskCounts counts;
  counts.token_chunks = ceil_div(num_tokens, kGpuTokenChunk);
  counts.gemm1_tiles = params.problem.intermediate_blocks();
  counts.gemm2_tiles = gemm2_tiles(params.problem.hidden);
  bool routes_known = false;
  auto queue = RingCursor<kQueueSlots>::producer();
  auto stage = RingCursor<C::kStages>::producer();
  const uint64_t policy = ptx::policy_evict_first();
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
    const Task claimed = more ? task_at(counts, ticket) : Task{};
    BlockTask& task = smem.queue[queue.slot];
    task.kind = static_cast<int32_t>(claimed.kind);
    task.index = claimed.index;
    task.tile = static_cast<int32_t>(claimed.tile);
    const bool gemm = claimed.kind == TaskKind::kGemm1 || claimed.kind == TaskKind::kGemm2;
    if (gemm) describe_block(params, claimed.block, task);
    const BlockTask copy = task;
    ptx::mbarrier_arrive(ptx::smem_address(&smem.queue_full[queue.slot]));
    queue.advance();
    if (gemm) stream_weights(params, smem, copy, stage, policy);
    more = claimed.kind != TaskKind::kNone;
  }
}

}  // namespace monomoe::cuda
