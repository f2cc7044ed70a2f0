// Role: gather - two warps of the moving warpgroup (2, 3).
// Waits on:  queue_full (claim), block_done[block] (GEMM1 of other thread blocks, gpu scope), empty[stage] (math)
// Signals:   full[stage] (one arrival per thread, when its copies have landed), queue_empty
// Reads:     token rows or the intermediate    Writes: smem.tokens, smem.scales
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/claim.cuh"
#include "cuda/ptx/copy.cuh"

namespace monomoe::cuda {

// Where the rows of the block's routes begin: own rows in the workspace, the others where their source pushed them.
template <class C>
__device__ __forceinline__ void find_rows(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int thread) {
  const Problem& p = params.problem;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  for (int row = thread; row < task.count; row += kGatherWarps * 32) {
    if (static_cast<TaskKind>(task.kind) == TaskKind::kGemm2) {
      const int64_t route = task.route_begin + row;
      smem.row_codes[row] = params.workspace + params.local.mid_codes + route * p.padded_intermediate();
      smem.row_scales[row] = reinterpret_cast<const float*>(params.workspace + params.local.mid_scales) + route * p.intermediate_blocks();
      continue;
    }
    const int4 words = __ldcg(reinterpret_cast<const int4*>(routes + task.route_begin + row));
    const int64_t src = words.x, token = words.y;
    const bool own = src == params.self;
    const int64_t index = own ? token : peer_block(src, params.self) * p.capacity + token;
    const uint8_t* codes = own ? params.workspace + params.local.own_codes : params.peers[params.self] + params.symmetric.row_codes;
    const uint8_t* scales = own ? params.workspace + params.local.own_scales : params.peers[params.self] + params.symmetric.row_scales;
    smem.row_codes[row] = codes + index * p.hidden;
    smem.row_scales[row] = reinterpret_cast<const float*>(scales) + index * p.hidden_blocks();
  }
  ptx::named_barrier_sync(kGatherBarrier, kGatherWarps * 32);
}

template <class C>
__device__ __forceinline__ void copy_stage(SharedStorage<C>& smem, const BlockTask& task, uint32_t slot, int64_t k_block, int thread) {
  const uint32_t tokens = ptx::smem_address(smem.tokens[slot]);
  const int chunk = thread % 8;
  for (int row = thread / 8; row < task.count; row += kGatherWarps * 4) {
    ptx::copy_async_16(tokens + row * 128 + ((chunk ^ (row & 7)) << 4), smem.row_codes[row] + k_block * kBlockK + chunk * 16);
  }
  const uint32_t scales = ptx::smem_address(smem.scales[slot]);
  for (int row = thread; row < task.count; row += kGatherWarps * 32) ptx::copy_async_4(scales + row * 4, smem.row_scales[row] + k_block);
  ptx::copy_async_arrive(ptx::smem_address(&smem.full[slot]));
}

template <class C>
__device__ __forceinline__ void gather_rows(const Params& params, SharedStorage<C>& smem, const BlockTask& task,
                                            RingCursor<C::kStages>& stage, int thread) {
  const bool down = static_cast<TaskKind>(task.kind) == TaskKind::kGemm2;
  const int64_t k_blocks = down ? params.experts.down_k_blocks : params.experts.gate_up_k_blocks;
  for (int64_t k_block = 0; k_block < k_blocks; ++k_block) {
    wait_barrier(smem.empty[stage.slot], stage.phase);
    copy_stage(smem, task, stage.slot, k_block, thread);
    stage.advance();
  }
}

template <class C>
__device__ __forceinline__ void gather_role(const Params& params, SharedStorage<C>& smem, int thread) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  auto stage = RingCursor<C::kStages>::producer();
  for (;;) {
    wait_barrier(smem.queue_full[queue.slot], queue.phase);
    const BlockTask task = smem.queue[queue.slot];
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::smem_address(&smem.queue_empty[queue.slot]));
    queue.advance();
    const auto kind = static_cast<TaskKind>(task.kind);
    if (kind == TaskKind::kNone) return;
    if (!is_gemm(kind)) continue;
    if (kind == TaskKind::kGemm2) {
      if (thread % 32 == 0) {
        const auto* done = reinterpret_cast<const uint32_t*>(params.workspace + params.local.block_done) + task.block;
        await_at_least(
            params, [&] { return uint64_t{ptx::load_acquire_gpu(done)}; }, static_cast<uint64_t>(params.problem.intermediate_blocks()),
            TaskKind::kGemm2, WaitFlag::kBlockDone, static_cast<uint64_t>(params.self), static_cast<uint64_t>(task.block));
      }
      __syncwarp();
    }
    ptx::named_barrier_sync(kGatherBarrier, kGatherWarps * 32);  // all are done with the last task's row pointers
    find_rows(params, smem, task, thread);
    gather_rows(params, smem, task, stage, thread);
  }
}

}  // namespace monomoe::cuda
