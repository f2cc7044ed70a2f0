// Role: expand - one warpgroup, FP4 only. Where tokens are WGMMA's M operand, weights must be e4m3 in shared memory: it makes them so.
// Waits on:  queue_full (claim), weights_full[slot] (weights), expanded_empty[slot] (math), written[slot] (math)
// Signals:   expanded_full[slot], weights_empty[slot], queue_empty
// Reads:     smem.weights                      Writes: smem.expanded
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/weights_to_registers.cuh"
#include "plan/ring.h"

namespace monomoe::cuda {

// A block of 64 rows in register fragments -> swizzled rows of 128 bytes. tile: of the block; fragments are weights_to_registers.cuh's.
__device__ __forceinline__ void store_block(uint32_t tile, const uint32_t (&a)[16], int thread) {
  const int warp = thread / 32, lane = thread % 32, row = lane & 7, upper = (lane >> 3) & 1, h = lane >> 4;
  const uint32_t base = tile + (16 * warp + 8 * upper + row) * 128 + ((h ^ row) << 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::store_matrices(base ^ (i << 5), a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]);
}

template <class C>
struct ExpandRings {
  RingCursor<C::kWeightSlots> weights = RingCursor<C::kWeightSlots>::consumer();
  RingCursor<C::kExpandedSlots> expanded = RingCursor<C::kExpandedSlots>::producer();
};

template <class C>
__device__ __forceinline__ void expand_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, ExpandRings<C>& rings, int thread) {
  const auto [k_blocks, halves] = task_extent(params, task);
  const int lane = thread % 32;
  prepare_tables(params, smem.tables, smem.table_key, task, kExpandBarrier, kExpandThreads, thread);
  for (int i = 0; i < k_blocks * halves; ++i) {
    wait_barrier(smem.weights_full_at(rings.weights.slot), rings.weights.phase);
    const uint32_t half = smem.weights_at(rings.weights.slot);
    uint32_t a[16];
    expand_fragment<Shift::kByShifter>(a, load_fragment(smem.tables_at(), half, 0, thread));
    const PackedCodes second = load_codes(half, 1, thread);  // before the stores, which it would have to follow
    wait_barrier(smem.expanded_empty_at(rings.expanded.slot), rings.expanded.phase);
    const uint32_t tile = smem.expanded_at() + rings.expanded.slot * static_cast<uint32_t>(kFp8HalfBytes);
    store_block(tile, a, thread);
    expand_fragment<Shift::kByShifter>(a, with_tables(smem.tables_at(), second));
    store_block(tile + 64 * 128, a, thread);
    ptx::fence_proxy_async_smem();  // every writer, before the arrival: generic writes, then WGMMA's reads
    __syncwarp();
    if (lane == 0) {
      ptx::mbarrier_arrive(smem.expanded_full_at(rings.expanded.slot));
      ptx::mbarrier_arrive(smem.weights_empty_at(rings.weights.slot));
    }
    rings.weights.advance();
    rings.expanded.advance();
  }
}

template <class C>
__device__ __forceinline__ void expand_role(const Params& params, SharedStorage<C>& smem, int thread) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  ExpandRings<C> rings;
  for (;;) {
    wait_barrier_patiently(smem.queue_full_at(queue.slot), queue.phase);
    const BlockTask& task = smem.queue[queue.slot];
    const auto kind = static_cast<TaskKind>(task.kind);
    if (kind == TaskKind::kNone) return;
    if (is_gemm(kind) && has_many_tokens(task)) {
      expand_task(params, smem, task, rings, thread);
    } else if (is_gemm(kind)) {
      // The math warps expand this task's weights themselves, and stage its result where this role writes.
      const auto [k_blocks, halves] = task_extent(params, task);
      rings.weights.skip(k_blocks * halves);
      wait_barrier_patiently(smem.written_at(queue.slot), queue.phase);
    }
    __syncwarp();
    if (thread % 32 == 0) ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot));
    queue.advance();
  }
}

}  // namespace monomoe::cuda
