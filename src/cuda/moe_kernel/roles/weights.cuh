// Role: weights - one thread of the moving warpgroup (warp 1).
// Waits on:  queue_full (claim), weights_empty[slot] (math, or side)
// Signals:   weights_full[slot] (bytes), queue_empty
// Reads:     packed weights                    Writes: smem.weights
// Ends when: the end task is met. Weights do not depend on tokens, so they stream before the tokens of their task are there
//            (but a thread block's first GEMM task comes with all rows, if rows are arranged).
#pragma once

#include "cuda/moe_kernel/roles/tasks.cuh"
#include "cuda/ptx/copy.cuh"

namespace monomoe::cuda {

// Few tokens: both halves of a K block, one after the other. More: a half's whole K, then the other's.
template <class C>
__device__ __forceinline__ void stream_weights(const Params& params, SharedStorage<C>& smem, const BlockTask& task,
                                               RingCursor<C::kWeightSlots>& slot, uint64_t policy) {
  const bool down = is_down(task), by_halves = !has_few_tokens(task);
  const auto [k_blocks, halves] = task_extent(params, task);
  const uint8_t* tile = task.expert + (down ? params.experts.down_half(2 * task.tile, 0) : params.experts.gate_up_half(2 * task.tile, 0));
  const int outer = by_halves ? halves : 1, inner = by_halves ? k_blocks : k_blocks * halves;
  const int64_t outer_bytes = C::kHalfBytes, inner_bytes = by_halves ? halves * static_cast<int64_t>(C::kHalfBytes) : C::kHalfBytes;
  for (int o = 0; o < outer; ++o) {
    const uint8_t* src = tile + o * outer_bytes;
    for (int i = 0; i < inner; ++i, src += inner_bytes) {
      wait_barrier(smem.weights_empty_at(slot.slot), slot.phase);
      const uint32_t full = smem.weights_full_at(slot.slot);
      ptx::mbarrier_arrive_expect_tx(full, C::kHalfBytes);
      ptx::bulk_copy(smem.weights_at(slot.slot), src, C::kHalfBytes, full, policy);
      slot.advance();
    }
  }
}

template <class C>
__device__ __forceinline__ void weights_role(const Params& params, SharedStorage<C>& smem) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  auto slot = RingCursor<C::kWeightSlots>::producer();
  const uint64_t once = ptx::policy_evict_first(), again = ptx::policy_evict_normal();
  for (;;) {
    wait_barrier_patiently(smem.queue_full_at(queue.slot), queue.phase);
    const BlockTask task = smem.queue[queue.slot];
    ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot));
    queue.advance();
    if (static_cast<TaskKind>(task.kind) == TaskKind::kNone) return;
    // A full block may be followed by another one of the same expert.
    if (is_gemm(static_cast<TaskKind>(task.kind))) stream_weights(params, smem, task, slot, task.count == kGpuTokenBlock ? again : once);
  }
}

}  // namespace monomoe::cuda
