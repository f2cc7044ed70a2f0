// What the side warps do with FP4 weights of many tokens: where tokens are WGMMA's M operand, weights must be e4m3 in shared memory.
#pragma once

#include "cuda/moe_kernel/roles/finish.cuh"
#include "cuda/moe_kernel/roles/weights_to_registers.cuh"

namespace monomoe::cuda {

// Where a thread stores in a block of 64 rows, swizzled rows of 128 bytes.
__device__ __forceinline__ uint32_t place_in_block(int thread) {
  const int warp = thread / 32, lane = thread % 32, row = lane & 7, upper = (lane >> 3) & 1, h = lane >> 4;
  return (16 * warp + 8 * upper + row) * 128 + ((h ^ row) << 4);
}

// A block of 64 rows in register fragments (weights_to_registers.cuh) -> shared memory. place: this thread's, of a block.
__device__ __forceinline__ void store_block(uint32_t place, const uint32_t (&a)[16]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) ptx::store_matrices(place ^ (i << 5), a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3]);
}

template <class C>
__device__ __forceinline__ void expand_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, SideRings<C>& rings, int thread) {
  const auto [k_blocks, halves] = task_extent(params, task);
  ptx::named_barrier_sync(kSideBarrier, kSideThreads);  // results of few tokens lay where tiles are stored: all side warps have read theirs
  prepare_tables(params, smem.tables, smem.table_key, task, kSideBarrier, kSideThreads, thread);
  // Places of this task's own: the role's would lie in local memory.
  auto weights = rings.weights.cursor();
  auto expanded = rings.expanded.cursor();
  rings.weights.skip(k_blocks * halves);
  rings.expanded.skip(k_blocks * halves);
  const uint32_t place = place_in_block(thread);
#pragma unroll 1
  for (int left = k_blocks * halves; left > 0; --left) {
    uint32_t tile = smem.expanded_at(expanded.slot) + place;
    asm volatile("" : "+r"(tile));  // known before the waits
    wait_barrier(smem.weights_full_at(weights.slot), weights.phase);
    const uint32_t half = smem.weights_at(weights.slot);
    // One block ahead, while the math warps still have the tile's memory: what they wait for then is the other one (two of its four steps ahead: 1,024 tokens take 507 us
    // instead of 494).
    uint32_t a[16];
    const PackedCodes first = load_codes(half, 0, thread);
    expand_fragment<Shift::kByShifter>(a, first, look_up_tables(smem.tables_at(), first.scales));
    const PackedCodes second = load_codes(half, 1, thread);  // before the stores, which it would have to follow
    wait_barrier(smem.expanded_empty_at(expanded.slot), expanded.phase);
    store_block(tile, a);
    expand_fragment<Shift::kByShifter>(a, second, look_up_tables(smem.tables_at(), second.scales));
    store_block(tile + 64 * 128, a);
    ptx::fence_proxy_async_smem();  // every writer, before the arrival: generic writes, then WGMMA's reads
    __syncwarp();
    if (ptx::elected()) {
      ptx::mbarrier_arrive(smem.expanded_full_at(expanded.slot));
      ptx::mbarrier_arrive(smem.weights_empty_at(weights.slot), kMathWarps / kSideWarps);
    }
    weights.advance();
    expanded.advance();
  }
}

}  // namespace monomoe::cuda
