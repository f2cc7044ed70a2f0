// Role: weights - one thread of the moving warpgroup (warp 1).
// Waits on:  queue_full (claim), empty[stage] (math)
// Signals:   full[stage] (bytes), queue_empty
// Reads:     packed weights                    Writes: smem.weights
// Ends when: the end task is met. Weights do not depend on tokens, so they stream before the tokens of their task are there.
#pragma once

#include "cuda/moe_kernel/roles/claim.cuh"
#include "cuda/ptx/copy.cuh"

namespace monomoe::cuda {

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
__device__ __forceinline__ void weights_role(const Params& params, SharedStorage<C>& smem) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  auto stage = RingCursor<C::kStages>::producer();
  const uint64_t policy = ptx::policy_evict_first();
  for (;;) {
    wait_barrier(smem.queue_full[queue.slot], queue.phase);
    const BlockTask task = smem.queue[queue.slot];
    ptx::mbarrier_arrive(ptx::smem_address(&smem.queue_empty[queue.slot]));
    queue.advance();
    if (static_cast<TaskKind>(task.kind) == TaskKind::kNone) return;
    if (is_gemm(static_cast<TaskKind>(task.kind))) stream_weights(params, smem, task, stage, policy);
  }
}

}  // namespace monomoe::cuda
