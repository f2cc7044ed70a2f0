// Role: side - one warpgroup beside the math warps. Where weights are WGMMA's M operand it takes a task's results, where tokens are it expands FP4 weights. Before its first task,
// those of some thread blocks send the ids.
// Waits on:  drained (all peers, system scope), queue_full (claim), results_full[slot] (math), weights_full[slot] (weights), expanded_empty[slot] (math)
// Signals:   ids_sent (gpu scope), ids_arrived (system scope), results_empty[slot], written[slot], expanded_full[slot], weights_empty[slot], queue_empty
// Reads:     ids and weights of the call, smem.results, smem.weights, its part of the scratch
// Writes:    ids, weights and numbers of tokens on all ranks, smem.results as expanded tiles, the intermediate, contributions, its part of the scratch
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/expand.cuh"
#include "cuda/moe_kernel/roles/finish_middle.cuh"
#include "cuda/moe_kernel/roles/send_ids.cuh"

namespace monomoe::cuda {

template <class C>
__device__ __forceinline__ void side_role(const Params& params, SharedStorage<C>& smem) {
  auto queue = RingCount<kQueueSlots>::consumer();
  SideRings<C> rings;
  const int thread = ptx::thread_index() % 128;  // read once: the loops would read it anew for want of registers
  const int warp = thread / 32, lane = thread % 32;
  if (params.phase != LaunchPhase::kSecond) send_ids(params, smem.epoch, smem.num_tokens, smem.given_tickets, thread);
  for (;;) {
    wait_barrier_patiently(smem.queue_full_at(queue.slot()), queue.phase());
    const BlockTask& task = smem.queue[queue.slot()];
    const auto kind = static_cast<TaskKind>(task.kind);
    if (kind == TaskKind::kNone) return;
    if (is_finished_aside<C>(task)) {
      if constexpr (!C::is_fp8) {  // the math warps expand this task's weights
        const auto [k_blocks, halves] = task_extent(params, task);
        rings.weights.skip(k_blocks * halves);
      }
      if (has_few_tokens(task)) {
        if (is_down(task)) finish_gemm2(params, smem, task, rings, warp, lane);
        else finish_gemm1(params, smem, task, rings, warp, lane);
      } else if constexpr (!C::is_fp8) {
        if (is_down(task)) finish_middle_gemm2(params, smem, task, rings, warp, lane);
        else finish_middle_gemm1(params, smem, task, rings, warp, lane);
      }
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(smem.written_at(queue.slot()), kMathWarps / kSideWarps);
    } else if (is_gemm(kind)) {
      if constexpr (!C::is_fp8) expand_task(params, smem, task, rings, thread);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot()));
    queue.advance();
  }
}

}  // namespace monomoe::cuda
