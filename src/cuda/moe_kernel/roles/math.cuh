// Role: math - two warpgroups. They compute GEMM tiles, and as plain threads dispatch, build route lists and combine.
// Waits on:  queue_full (claim), full[stage] (weights' bytes and the gather threads)
// Signals:   queue_empty, empty[stage] (one arrival per warp), the flags of each task
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/combine.cuh"
#include "cuda/moe_kernel/roles/routes.cuh"

namespace monomoe::cuda {

template <class C, int kTokens, int kChunks>
__device__ __forceinline__ void gemm_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring, uint64_t epoch,
                                          int warpgroup, int thread) {
  Sums<kTokens, kChunks> sums;
  gemm_sums(params, smem, task, ring, sums, warpgroup, thread);
  if (static_cast<TaskKind>(task.kind) == TaskKind::kGemm1) gemm1_epilogue(params, smem, task, ring, sums, epoch, warpgroup, thread);
  else gemm2_epilogue(params, smem, task, ring, sums, warpgroup, thread);
}

template <class C>
__device__ __forceinline__ void run_gemm(const Params& params, SharedStorage<C>& smem, const BlockTask& task, MathRing<C>& ring, uint64_t epoch,
                                         int warpgroup, int thread) {
  if constexpr (!C::is_fp8) prepare_tables(params, smem, task, warpgroup * 128 + thread);
  if (task.count <= 8) gemm_task<C, 8, 1>(params, smem, task, ring, epoch, warpgroup, thread);
  else if (task.count <= 16) gemm_task<C, 16, 1>(params, smem, task, ring, epoch, warpgroup, thread);
  else if (task.count <= 32) gemm_task<C, 32, 1>(params, smem, task, ring, epoch, warpgroup, thread);
  else if (task.count <= 64) gemm_task<C, 64, 1>(params, smem, task, ring, epoch, warpgroup, thread);
  else gemm_task<C, 64, 2>(params, smem, task, ring, epoch, warpgroup, thread);
}

template <class C>
__device__ __forceinline__ void math_role(const Params& params, SharedStorage<C>& smem, uint64_t epoch, int64_t num_tokens, int warpgroup, int thread) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  MathRing<C> ring;
  const int math_thread = warpgroup * 128 + thread;
  for (;;) {
    wait_barrier(smem.queue_full[queue.slot], queue.phase);
    const BlockTask task = smem.queue[queue.slot];
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::smem_address(&smem.queue_empty[queue.slot]));
    queue.advance();
    switch (static_cast<TaskKind>(task.kind)) {
      case TaskKind::kDispatch: dispatch_task(params, task.index, epoch, num_tokens, math_thread); break;
      case TaskKind::kRoutes: routes_task(params, smem, epoch, num_tokens, math_thread); break;
      case TaskKind::kGemm1:
      case TaskKind::kGemm2: run_gemm(params, smem, task, ring, epoch, warpgroup, thread); break;
      case TaskKind::kCombine: combine_task(params, task.index, num_tokens, math_thread); break;
      case TaskKind::kNone: return;
    }
  }
}

}  // namespace monomoe::cuda
