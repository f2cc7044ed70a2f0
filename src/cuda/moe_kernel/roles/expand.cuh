// What the side warps do with FP4 weights of many tokens: where tokens are WGMMA's M operand, weights must be e4m3 in shared memory.
#pragma once

#include "cuda/moe_kernel/roles/finish.cuh"
#include "cuda/moe_kernel/roles/weights_to_registers.cuh"

namespace monomoe::cuda {

// A block of 64 rows in register fragments -> swizzled rows of 128 bytes. tile: of the block; fragments are weights_to_registers.cuh's.
__device__ __forceinline__ void store_block(uint32_t tile, const uint32_t (&a)[16], int thread) {
  const int warp = thread / 32, lane = thread % 32, row = lane & 7, upper = (lane >> 3) & 1, h = lane >> 4;
  const uint32_t base = tile + (16 * warp + 8 * upper + row) * 128 + ((h ^ row) << 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::store_matrices(base ^ (i << 5), a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]);
}

template <class C>
__device__ __forceinline__ void expand_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int thread) {
  const auto [k_blocks, halves] = task_extent(params, task);
  const int lane = thread % 32;
  ptx::named_barrier_sync(kSideBarrier, kSideThreads);  // results of few tokens lay where tiles are stored: all side warps have read theirs
  prepare_tables(params, smem.tables, smem.table_key, task, kSideBarrier, kSideThreads, thread);
  for (int i = 0; i < k_blocks * halves; ++i) {
    wait_barrier(smem.weights_full_at(rings.weights.slot), rings.weights.phase);
    const uint32_t half = smem.weights_at(rings.weights.slot);
    uint32_t a[16];
    const PackedCodes first = load_codes(half, 0, thread);
    expand_fragment<Shift::kByShifter>(a, first, look_up_tables(smem.tables_at(), first.scales));
    const PackedCodes second = load_codes(half, 1, thread);  // before the stores, which it would have to follow
    wait_barrier(smem.expanded_empty_at(rings.expanded.slot), rings.expanded.phase);
    const uint32_t tile = smem.expanded_at(rings.expanded.slot);
    store_block(tile, a, thread);
    expand_fragment<Shift::kByShifter>(a, second, look_up_tables(smem.tables_at(), second.scales));
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

}  // namespace monomoe::cuda
