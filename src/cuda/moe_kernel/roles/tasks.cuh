// Tasks as thread blocks claim them: their sizes, what a claimed one tells the roles, and waiting for barriers.
#pragma once

#include "cuda/moe_kernel/phase.cuh"
#include "cuda/moe_kernel/shared_storage.cuh"
#include "cuda/moe_kernel/waits.cuh"
#include "plan/ring.h"
#include "plan/task_order.h"

namespace monomoe::cuda {

// Tokens of one dispatch task: as few as make one task a thread block, but for one that lists routes; up to eight of them share out the math warps. Two a warp at most: thread
// blocks that list routes of a large call find dispatch tasks when they have done.
__device__ __forceinline__ uint32_t dispatch_chunk(int64_t num_tokens) {
  const auto tokens = static_cast<uint32_t>(num_tokens), blocks = max(1u, gridDim.x - 1);
  for (uint32_t chunk = 1; chunk < kMathWarps; chunk *= 2) {
    if (tokens <= chunk * blocks) return chunk;
  }
  return min((tokens + blocks * kMathWarps - 1) / (blocks * kMathWarps) * kMathWarps, uint32_t{2 * kMathWarps});
}
// Tokens of one combine task: the same, but no more than one a warp.
__device__ __forceinline__ uint32_t combine_chunk(int64_t num_tokens) { return min(dispatch_chunk(num_tokens), uint32_t{kMathWarps}); }
__device__ __forceinline__ int64_t dispatch_chunks(int64_t num_tokens) { return divide(num_tokens + dispatch_chunk(num_tokens) - 1, dispatch_chunk(num_tokens)); }

// Rows of the pieces in which a block is arranged: few, so that a piece is soon done even by one warp.
inline constexpr int kArrangeRows = 8;
inline constexpr int kArrangePieces = static_cast<int>(kGpuTokenBlock) / kArrangeRows;
// Tasks of a block before the GEMMs: few, since their claims count; all math warps share a task's rows.
inline constexpr int kArrangeTasks = 8;

__device__ __forceinline__ bool is_gemm(TaskKind kind) { return kind == TaskKind::kGemm1 || kind == TaskKind::kGemm2; }

__device__ __forceinline__ bool is_down(const BlockTask& task) { return static_cast<TaskKind>(task.kind) == TaskKind::kGemm2; }
__device__ __forceinline__ bool has_few_tokens(const BlockTask& task) { return task.form == BlockForm::kFew; }
template <class C>
__device__ __forceinline__ bool has_tokens_as_m(const BlockTask& task) { return C::is_fp8 ? task.form != BlockForm::kFew : task.form == BlockForm::kMany; }
// Its rows are copied into tiles before GEMM1.
__device__ __forceinline__ bool is_arranged(const BlockTask& task) { return task.count > kFewTokens; }
// Its results are the side warps' to write.
template <class C>
__device__ __forceinline__ bool is_finished_aside(const BlockTask& task) { return is_gemm(static_cast<TaskKind>(task.kind)) && !has_tokens_as_m<C>(task); }

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

// The same for a whole warp that has asked before: `here` is the answer of its mbarrier_test_wait. The vote spares the compiler a point where lanes meet.
__device__ __forceinline__ void wait_barrier_asked(bool here, uint32_t barrier, uint32_t phase) {
  while (!__all_sync(0xFFFFFFFFu, here)) here = ptx::mbarrier_try_wait(barrier, phase);
}

// The same as wait_barrier for a role that runs ahead: it leaves the issue slots to the others while it waits.
__device__ __forceinline__ void wait_barrier_patiently(uint32_t barrier, uint32_t phase) {
  while (!ptx::mbarrier_try_wait(barrier, phase)) __nanosleep(40);
}

// FP4 takes kMiddle only where no block is kMany: the side warps can expand the next task's weights only when they have finished the results of the one before
// (2,048 tokens: 929 us instead of 904).
__device__ __forceinline__ BlockForm form_of(const Params& params, bool any_many, int count) {
  if (count <= kFewTokens) return BlockForm::kFew;
  const bool middle = count <= kMiddleTokens && (params.problem.weights == WeightFormat::kFp8 || !any_many);
  return middle ? BlockForm::kMiddle : BlockForm::kMany;
}

// The block's routes and expert, and the expert's multipliers and shifts. A block past the last has no routes.
__device__ __forceinline__ void describe_block(const Params& params, const TaskCounts& counts, bool any_many, int64_t block, BlockTask& task) {
  task.count = 0;
  if (block >= counts.blocks) return;
  const int4 words = __ldcg(reinterpret_cast<const int4*>(params.workspace + params.local.blocks) + block);
  task.route_begin = static_cast<int64_t>(static_cast<uint32_t>(words.x)) | static_cast<int64_t>(words.y) << 32;
  task.slot = words.z;
  task.count = words.w;
  task.form = form_of(params, any_many, task.count);
  task.block = block;
  task.expert = params.packed_experts + task.slot * params.experts.bytes;
  const auto* header = reinterpret_cast<const PackedExpertHeader*>(task.expert);
  const bool down = is_down(task);
  task.multiplier[0] = down ? header->down_multiplier : header->gate_multiplier;
  task.multiplier[1] = down ? header->down_multiplier : header->up_multiplier;
  task.shift[0] = down ? header->down_shift : header->gate_shift;
  task.shift[1] = down ? header->down_shift : header->up_shift;
}

// So many routes of all sources are listed by one task.
inline constexpr int64_t kFewRoutes = 4096;

// What is known before the route lists, and what they add.
__device__ __forceinline__ TaskCounts counts_before_routes(const Params& params, int64_t num_tokens) {
  TaskCounts counts;
  counts.dispatch_chunks = dispatch_chunks(num_tokens);
  counts.route_tasks = 2 * kRouteTasks;
  const uint32_t chunk = combine_chunk(num_tokens);
  counts.combine_chunks = divide(num_tokens + chunk - 1, chunk);
  counts.routes_first = num_tokens * params.problem.topk > kFewRoutes;
  counts.gemm1_tiles = params.problem.intermediate_blocks();
  counts.gemm2_tiles = gemm2_tiles(params.problem.hidden);
  return counts;
}
// listed: the word of DeviceState::routes_ready.
__device__ __forceinline__ void add_blocks(const Params& params, TaskCounts& counts, uint64_t listed) {
  counts.blocks = static_cast<uint32_t>(listed) >> 2;
  counts.arrange_pieces = (listed & 1) != 0 ? kArrangePieces : 0;
  counts.arrange_tasks = counts.arrange_pieces > 0 ? kArrangeTasks : 0;
  counts.arrange_ahead = min_of(kArrangedFirst, params.local.window);
}

// Whether a block has more than kMiddleTokens. listed: the same word.
__device__ __forceinline__ bool has_many_blocks(uint64_t listed) { return (listed & 2) != 0; }

// Tickets that need no counter: a thread block's first task is the one of its number, if that is known before the route lists are.
__device__ __forceinline__ uint32_t given_tickets(const Params& params, const TaskCounts& counts) {
  return params.phase == LaunchPhase::kSecond ? 0 : static_cast<uint32_t>(min_of(gridDim.x, counts.before_gemms()));
}

__device__ __forceinline__ void put_task(const Params& params, const TaskCounts& counts, bool any_many, const Task& claimed, BlockTask& task) {
  task.kind = static_cast<int32_t>(claimed.kind);
  task.index = claimed.index;
  task.tile = static_cast<int32_t>(claimed.tile);
  if (is_gemm(claimed.kind) || claimed.kind == TaskKind::kArrange) describe_block(params, counts, any_many, claimed.block, task);
}

// The first task into the queue, before any role runs.
template <class C>
__device__ __forceinline__ void give_first_task(const Params& params, SharedStorage<C>& smem) {
  const TaskCounts counts = counts_before_routes(params, smem.num_tokens);
  smem.given_tickets = given_tickets(params, counts);
  if (blockIdx.x >= smem.given_tickets) return;
  put_task(params, counts, false, task_at(counts, blockIdx.x), smem.queue[0]);  // no GEMM
  ptx::mbarrier_arrive(smem.queue_full_at(0));
}

}  // namespace monomoe::cuda
