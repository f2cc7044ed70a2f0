// Role: claim - one thread of the moving warpgroup (warp 0). It runs a task ahead of the others.
// Waits on:  queue_empty (weights, gather, publish, math, expand), written (math), routes_ready (routes task, gpu scope)
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

// Tokens of one dispatch task: one, for all warps, while there are thread blocks enough; else as many for each warp as make one task a block.
__device__ __forceinline__ int64_t dispatch_chunk(int64_t num_tokens) {
  return num_tokens <= 2 * gridDim.x ? 1 : ceil_div(num_tokens, static_cast<int64_t>(gridDim.x) * kMathWarps) * kMathWarps;
}
// Tokens of one combine task: one for each warp, or one for all of them.
__device__ __forceinline__ int64_t combine_chunk(int64_t num_tokens) { return num_tokens <= 2 * gridDim.x ? 1 : kMathWarps; }

// Pieces of 64 rows in which a block is arranged.
inline constexpr int kArrangePieces = static_cast<int>(kGpuTokenBlock) / kSubtileTokens;

__device__ __forceinline__ bool is_gemm(TaskKind kind) { return kind == TaskKind::kGemm1 || kind == TaskKind::kGemm2; }

__device__ __forceinline__ bool is_down(const BlockTask& task) { return static_cast<TaskKind>(task.kind) == TaskKind::kGemm2; }
__device__ __forceinline__ bool has_many_tokens(const BlockTask& task) { return task.count > kFewTokens; }

// What a GEMM task goes over: blocks of 128 along K, and halves of 128 weight rows (the last tile of down may have one).
struct TaskExtent {
  int k_blocks, halves;
};
__device__ __forceinline__ TaskExtent task_extent(const Params& params, const BlockTask& task) {
  const bool down = is_down(task);
  const int64_t halves = (down ? params.experts.down_halves : params.experts.gate_up_halves) - 2 * task.tile;
  return {static_cast<int>(down ? params.experts.down_k_blocks : params.experts.gate_up_k_blocks), static_cast<int>(min_of(2, halves))};
}

__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t phase) {
  while (!ptx::mbarrier_try_wait(barrier, phase)) {
  }
}

// The same for a role that runs ahead: it leaves the issue slots to the others while it waits.
__device__ __forceinline__ void wait_barrier_patiently(uint32_t barrier, uint32_t phase) {
  while (!ptx::mbarrier_try_wait(barrier, phase)) __nanosleep(40);
}

// The block's routes and expert, and the expert's multipliers and shifts. A block past the last has no routes.
__device__ __forceinline__ void describe_block(const Params& params, int64_t block, int64_t blocks, BlockTask& task) {
  task.count = 0;
  if (block >= blocks) return;
  const int4 words = __ldcg(reinterpret_cast<const int4*>(params.workspace + params.local.blocks) + block);
  task.route_begin = static_cast<int64_t>(static_cast<uint32_t>(words.x)) | static_cast<int64_t>(words.y) << 32;
  task.slot = words.z;
  task.count = words.w;
  task.block = block;
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(params.slot_data[task.slot]);
  const bool down = is_down(task);
  task.multiplier[0] = down ? header->down_multiplier : header->gate_multiplier;
  task.multiplier[1] = down ? header->down_multiplier : header->up_multiplier;
  task.shift[0] = down ? header->down_shift : header->gate_shift;
  task.shift[1] = down ? header->down_shift : header->up_shift;
}

// What is known before the route lists, and what they add.
__device__ __forceinline__ TaskCounts counts_before_routes(const Params& params, int64_t num_tokens) {
  TaskCounts counts;
  counts.dispatch_chunks = ceil_div(num_tokens, dispatch_chunk(num_tokens));
  counts.route_tasks = 2 * kRouteTasks;
  counts.combine_chunks = ceil_div(num_tokens, combine_chunk(num_tokens));
  counts.gemm1_tiles = params.problem.intermediate_blocks();
  counts.gemm2_tiles = gemm2_tiles(params.problem.hidden);
  return counts;
}
__device__ __forceinline__ void add_blocks(const Params& params, TaskCounts& counts) {
  counts.blocks = __ldcg(reinterpret_cast<const int64_t*>(params.workspace + params.local.block_begin) + params.num_slots);
  counts.arrange_pieces = __ldcg(reinterpret_cast<const unsigned long long*>(&params.state->arranges)) != 0 ? kArrangePieces : 0;
  counts.arrange_ahead = max_of(1, params.local.window / 2);
}

template <class C>
__device__ __forceinline__ void claim_role(const Params& params, SharedStorage<C>& smem) {
  const uint64_t epoch = smem.epoch;
  const int64_t num_tokens = smem.num_tokens;
  TaskCounts counts = counts_before_routes(params, num_tokens);
  bool routes_known = false;
  auto queue = RingCursor<kQueueSlots>::producer();
  auto finished = RingCursor<kQueueSlots>::consumer();
  int unfinished = 0;
  TaskKind last = TaskKind::kNone;
  for (bool more = true; more;) {
    // One GEMM task is claimed while the one before is worked on, so that its data can come; more would only spoil the balance.
    for (const int allowed = is_gemm(last) ? 1 : 0; unfinished > allowed; --unfinished, finished.advance()) {
      wait_barrier_patiently(smem.written_at(finished.slot), finished.phase);
    }
    wait_barrier_patiently(smem.queue_empty_at(queue.slot), queue.phase);
    const int64_t ticket = static_cast<int64_t>(ptx::fetch_add_relaxed_gpu(&params.state->next_task, 1));
    if (ticket >= counts.before_gemms() && !routes_known) {
      more = await_at_least(
          params, [&] { return ptx::load_acquire_gpu(&params.state->routes_ready); }, epoch, TaskKind::kGemm1, WaitFlag::kRoutesReady,
          static_cast<uint64_t>(params.self), 0);
      routes_known = true;
      if (more) add_blocks(params, counts);
    }
    Task claimed = more ? task_at(counts, ticket) : Task{};
    if (!is_of_this_launch(params, claimed.kind)) claimed = {};
    BlockTask& task = smem.queue[queue.slot];
    task.kind = static_cast<int32_t>(claimed.kind);
    task.index = claimed.index;
    task.tile = static_cast<int32_t>(claimed.tile);
    if (is_gemm(claimed.kind) || claimed.kind == TaskKind::kArrange) describe_block(params, claimed.block, counts.blocks, task);
    ptx::mbarrier_arrive(smem.queue_full_at(queue.slot));
    queue.advance();
    ++unfinished;
    last = claimed.kind;
    more = claimed.kind != TaskKind::kNone;
  }
}

}  // namespace monomoe::cuda
