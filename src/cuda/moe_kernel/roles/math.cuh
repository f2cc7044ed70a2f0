// Role: math - two warpgroups. They compute GEMM tiles, and as plain threads dispatch, build route lists and combine.
// Waits on:  queue_full (claim), weights_full (weights) or expanded_full (side), tokens_full (gather), results_empty[slot] (side)
// Signals:   written[slot] or results_full[slot], queue_empty, what is empty again (one arrival per warp each; two where a slot of weights is one warpgroup's)
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/arrange.cuh"
#include "cuda/moe_kernel/roles/combine.cuh"
#include "cuda/moe_kernel/roles/few_tokens_epilogue.cuh"
#include "cuda/moe_kernel/roles/many_tokens_epilogue.cuh"
#include "cuda/moe_kernel/roles/middle_tokens_epilogue.cuh"
#include "cuda/moe_kernel/roles/routes.cuh"

namespace monomoe::cuda {

template <class C, int kTokens>
__device__ __forceinline__ void few_tokens_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                int warpgroup) {
  Sums<kTokens> sums;
  // A tile of one half has all weight slots of its task, elsewhere a slot stays with one warpgroup. A phase bit tells only two uses of a slot apart, so a warpgroup
  // must not come to a slot whose last use the other one has not waited for yet.
  const bool alone = task_extent(params, task).halves == 1;
  if (alone) math_barrier();
  few_tokens_sums(params, smem, task, rings, sums, warpgroup);
  if (alone) math_barrier();
  trace_time(params, smem, TraceTime::kMultiplied);
  if (is_down(task)) few_tokens_gemm2_epilogue(params, smem, task, rings, sums, warpgroup);
  else few_tokens_gemm1_epilogue(smem, task, rings, sums, warpgroup);
}

template <class C, int kPart>
__device__ __forceinline__ void middle_tokens_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, int warpgroup) {
  const auto [k_blocks, halves] = task_extent(params, task);
  if (rings.last == MathRings<C>::Last::kFew) math_barrier();  // both warpgroups read slots of weights that were one's
  rings.last = MathRings<C>::Last::kMiddle;
  const int thread = ptx::thread_index() % 128;
  PartSums<kPart> sums;
  MiddleTokensLoop<C, kPart> loop{smem, rings, sums, thread, thread % 32, warpgroup, k_blocks * halves};
  loop.begin();
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    middle_tokens_half(params, smem, task, half, rings, loop);
    trace_time(params, smem, TraceTime::kMultiplied);
    if (is_down(task)) middle_tokens_gemm2_epilogue(smem, task, rings, sums, warpgroup);
    else middle_tokens_gemm1_epilogue(smem, task, rings, sums, warpgroup);
  }
  rings.release(thread % 32);
}

// kSubtiles: of this warpgroup. kPairs: the stages of tokens hold two K blocks.
template <class C, int kSubtiles, bool kPairs>
__device__ __forceinline__ void many_tokens_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                                 int warpgroup) {
  const auto [k_blocks, halves] = task_extent(params, task);
  if constexpr (!C::is_fp8) rings.weights.skip(k_blocks * halves);  // the side warps take them
  else if (rings.last == MathRings<C>::Last::kFew) math_barrier();  // both warpgroups read slots that were one's
  rings.last = MathRings<C>::Last::kMany;
#pragma unroll 1
  for (int half = 0; half < halves; ++half) {
    TokenSums<kSubtiles> sums;
    many_tokens_sums<C, kSubtiles, kPairs>(params, smem, task, half, rings, sums, warpgroup);
    trace_time(params, smem, TraceTime::kMultiplied);
    if (is_down(task)) many_tokens_gemm2_epilogue(params, task, half, sums, warpgroup);
    else many_tokens_gemm1_epilogue(params, task, half, sums, warpgroup);
    rings.release(ptx::thread_index() % 32);
  }
}

template <class C>
__device__ __forceinline__ void run_middle(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings, int warpgroup) {
  if (task.count <= 80) middle_tokens_task<C, 40>(params, smem, task, rings, warpgroup);
  else if (task.count <= 96) middle_tokens_task<C, 48>(params, smem, task, rings, warpgroup);
  else if (task.count <= 112) middle_tokens_task<C, 56>(params, smem, task, rings, warpgroup);
  else middle_tokens_task<C, 64>(params, smem, task, rings, warpgroup);
}

template <class C>
__device__ __forceinline__ void run_gemm(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRings<C>& rings,
                                         int warpgroup) {
  if (has_tokens_as_m<C>(task)) {
    const int subtiles = (task.count + kSubtileTokens - 1) / kSubtileTokens;
    if (subtiles - warpgroup > kMathWarpgroups) return many_tokens_task<C, 2, false>(params, smem, task, rings, warpgroup);
    if constexpr (C::is_fp8) {
      if (task.form == BlockForm::kMiddle) return many_tokens_task<C, 1, true>(params, smem, task, rings, warpgroup);
    }
    return many_tokens_task<C, 1, false>(params, smem, task, rings, warpgroup);
  }
  if constexpr (!C::is_fp8) {  // the math warps expand
    prepare_tables(params, smem.tables, smem.table_key, task, kMathBarrier, kMathThreads, warpgroup * 128 + ptx::thread_index() % 128);
    if (task.form == BlockForm::kMiddle) return run_middle(params, smem, task, rings, warpgroup);
  }
  if (task.count <= 8) few_tokens_task<C, 8>(params, smem, task, rings, warpgroup);
  else if (task.count <= 16) few_tokens_task<C, 16>(params, smem, task, rings, warpgroup);
  else if (task.count <= 24) few_tokens_task<C, 24>(params, smem, task, rings, warpgroup);
  else if (task.count <= 32) few_tokens_task<C, 32>(params, smem, task, rings, warpgroup);
  else if (task.count <= 40) few_tokens_task<C, 40>(params, smem, task, rings, warpgroup);
  else if (task.count <= 48) few_tokens_task<C, 48>(params, smem, task, rings, warpgroup);
  else if (task.count <= 56) few_tokens_task<C, 56>(params, smem, task, rings, warpgroup);
  else few_tokens_task<C, 64>(params, smem, task, rings, warpgroup);
}

// The task is read where it lies: copies of it would cost the main loops registers.
template <class C>
__device__ __forceinline__ void math_role(const Params& params, SharedStorage<C>& smem, int warpgroup) {
  auto queue = RingCount<kQueueSlots>::consumer();
  MathRings<C> rings;
  for (;;) {
    wait_barrier(smem.queue_full_at(queue.slot()), queue.phase());
    const BlockTask& task = smem.queue[queue.slot()];
    const int math_thread = ptx::thread_index() - 128;
    trace_time(params, smem, TraceTime::kTaken);
    switch (static_cast<TaskKind>(task.kind)) {
      case TaskKind::kDispatch: dispatch_task(params, task.index, smem.epoch, smem.num_tokens, smem.rows_missing, math_thread); break;
      case TaskKind::kRoutes: routes_task(params, smem, task.index, smem.epoch, smem.num_tokens, math_thread); break;
      case TaskKind::kArrange: arrange_task(params, task, math_thread); break;
      case TaskKind::kGemm1:
      case TaskKind::kGemm2: run_gemm(params, smem, task, rings, warpgroup); break;
      case TaskKind::kCombine: combine_task(params, task.index, smem.num_tokens, math_thread); break;
      case TaskKind::kNone: return;
    }
    trace_time(params, smem, TraceTime::kDone);
    trace_task(params, smem, task);
    __syncwarp();
    if (ptx::thread_index() % 32 == 0) {
      if (!is_finished_aside<C>(task)) ptx::mbarrier_arrive(smem.written_at(queue.slot()));
      ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot()));
    }
    queue.advance();
  }
}

}  // namespace monomoe::cuda
