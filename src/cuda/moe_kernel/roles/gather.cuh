// Role: gather - a warp of the moving warpgroup. It brings token rows: the intermediate and arranged rows by bulk copies of tiles, the
// rows of few tokens one by one from where their source pushed them.
// Waits on:  queue_full (claim), block_done or block_arranged (publish of other thread blocks, gpu scope), arrived (publish of all ranks, or their routes task, system scope),
//            tokens_empty[stage] (math)
// Signals:   tokens_full[stage] (one arrival per thread, when its copies have landed), queue_empty
// Reads:     token rows or the intermediate    Writes: smem.tokens, smem.scales
// Ends when: the end task is met.
#pragma once

#include "cuda/moe_kernel/roles/arranged_rows.cuh"
#include "cuda/moe_kernel/roles/sources.cuh"
#include "cuda/ptx/copy.cuh"

namespace monomoe::cuda {

inline constexpr int kGatherThreads = 32;

template <class C>
__device__ __forceinline__ void find_rows(const Params& params, SharedStorage<C>& smem, const BlockTask& task, int thread) {
  __syncwarp();  // all are done with the last task's row pointers
  for (int row = thread; row < task.count; row += kGatherThreads) {
    const TokenRow found = token_row(params, task.route_begin + row);
    smem.row_codes[row] = found.codes;
    smem.row_scales[row] = found.scales;
  }
  __syncwarp();
}

// `units` K blocks of all rows, from k_block on, into the stage. A row's K blocks lie side by side: the warp copies four of them at once. aligned_scales: so are
// four scales of every row (single words keep the path to shared memory busy: 4 us of 230 at 256 tokens).
template <class C>
__device__ __forceinline__ void copy_rows(SharedStorage<C>& smem, const BlockTask& task, uint32_t stage, int64_t k_block, int units, bool aligned_scales,
                                          int thread) {
  static_assert(kGatherThreads == kUnits * 8, "eight threads have a row's K block");
  const int unit = thread / 8, chunk = thread % 8;
  const uint32_t tokens = smem.tokens_at(stage) + unit * kUnitBytes;
  const int64_t from = k_block * kBlockK + thread * 16;
  if (unit < units) {
    // Four rows at a time: their places are all loaded before the first copy, which they could not pass.
    int row = 0;
    for (; row + 4 <= task.count; row += 4) {
      const uint8_t* codes[4];
      ptx::load_shared_pointers(smem.row_codes_at(row), codes[0], codes[1]);
      ptx::load_shared_pointers(smem.row_codes_at(row + 2), codes[2], codes[3]);
      const uint32_t group = tokens + row * 128, place = (chunk ^ (row & 4)) << 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::copy_async_16(group + i * 128 + (place ^ (i << 4)), codes[i] + from);
    }
    for (; row < task.count; ++row) ptx::copy_async_16(tokens + row * 128 + ((chunk ^ (row & 7)) << 4), smem.row_codes[row] + from);
  }
  const uint32_t scales = smem.scales_at(stage);
  for (int row = thread; row < task.count; row += kGatherThreads) {
    const float* from = smem.row_scales[row] + k_block;
    if (aligned_scales) ptx::copy_async_16(scales + row * kTokenScaleBytes, from);
    else for (int i = 0; i < units; ++i) ptx::copy_async_4(scales + row * kTokenScaleBytes + i * 4, from + i);
  }
}

// Rows that lie as tiles: [K block][rows x 128 B] and scales [K block][rows], of few tokens [four K blocks][rows][4].
struct TokenTiles {
  const uint8_t* codes;
  const float* scales;
  int64_t rows_apart;  // of two K blocks
};

__device__ __forceinline__ TokenTiles token_tiles(const Params& params, const BlockTask& task) {
  if (is_down(task)) return {mid_codes(params, task), mid_scales(params, task), block_rows(task)};
  return {arranged_codes(params, task.block), arranged_scales(params, task.block), kGpuTokenBlock};
}

// `units` K blocks from k_block on into the stage. One thread.
template <class C>
__device__ __forceinline__ void copy_tiles(SharedStorage<C>& smem, const TokenTiles& tiles, int rows, uint32_t stage, int64_t k_block, int units,
                                           uint64_t policy) {
  const uint32_t full = smem.tokens_full_at(stage);
  const uint32_t bytes = rows * kBlockK, scale_bytes = rows <= kFewTokens ? rows * kTokenScaleBytes : rows * 4;
  ptx::mbarrier_arrive_expect_tx(full, units * bytes + scale_bytes);
  ptx::bulk_copy(smem.scales_at(stage), tiles.scales + k_block * tiles.rows_apart, scale_bytes, full, policy);
  for (int unit = 0; unit < units; ++unit, ++k_block) {
    ptx::bulk_copy(smem.tokens_at(stage) + unit * kUnitBytes, tiles.codes + k_block * tiles.rows_apart * kBlockK, bytes, full, policy);
  }
}

// Until the rows this task reads are written: the intermediate by GEMM1, arranged rows by the arrange tasks, the others by their sources.
__device__ __forceinline__ void await_rows(const Params& params, const BlockTask& task, uint64_t epoch, bool& sources_here, int lane) {
  const bool down = is_down(task);
  if (!down && !has_many_tokens(task)) {
    if (!sources_here) await_sources(params, symmetric_flags(params, params.self)->arrived, epoch, TaskKind::kGemm1, lane);
    sources_here = true;
    return;
  }
  if (lane == 0) {
    const uint32_t* counter = down ? block_done(params, task.block) : block_arranged(params, task.block);
    await_at_least(
        params, [&] { return uint64_t{ptx::load_acquire_gpu(counter)}; }, down ? gemm1_tasks_of_block(params) : pieces_of_block(task),
        static_cast<TaskKind>(task.kind), WaitFlag::kBlockDone, static_cast<uint64_t>(params.self), static_cast<uint64_t>(task.block));
    ptx::fence_proxy_async();  // plain writes there, bulk copies here
  }
  __syncwarp();
}

template <class C>
__device__ __forceinline__ void gather_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task, RingCursor<C::kTokenStages>& stage,
                                            uint64_t policy, bool& sources_here, int thread) {
  const auto [k_blocks, halves] = task_extent(params, task);
  const bool many = has_many_tokens(task), tiled = many || is_down(task);
  const bool aligned_scales = params.problem.hidden_blocks() % kUnits == 0;
  TokenTiles tiles{};
  if (!tiled) find_rows(params, smem, task, thread);
  await_rows(params, task, smem.epoch, sources_here, thread);
  if (tiled) tiles = token_tiles(params, task);
  // Many tokens come once for each half of the weight rows, a K block at a time; few come once, four K blocks at a time.
  const int rounds = many ? halves : 1, step = many ? 1 : kUnits;
  for (int round = 0; round < rounds; ++round) {
    for (int k_block = 0; k_block < k_blocks; k_block += step) {
      const int units = min(step, k_blocks - k_block);
      wait_barrier(smem.tokens_empty_at(stage.slot), stage.phase);
      if (!tiled) {
        copy_rows(smem, task, stage.slot, k_block, units, aligned_scales, thread);
        ptx::copy_async_arrive(smem.tokens_full_at(stage.slot));
      } else if (thread == 0) {
        copy_tiles(smem, tiles, block_rows(task), stage.slot, k_block, units, policy);
      } else {
        ptx::mbarrier_arrive(smem.tokens_full_at(stage.slot));
      }
      stage.advance();
    }
  }
}

template <class C>
__device__ __forceinline__ void gather_role(const Params& params, SharedStorage<C>& smem, int lane) {
  auto queue = RingCursor<kQueueSlots>::consumer();
  auto stage = RingCursor<C::kTokenStages>::producer();
  const uint64_t policy = ptx::policy_evict_normal();
  const uint64_t* arrived = symmetric_flags(params, params.self)->arrived;
  bool sources_here = false;
  for (;;) {
    // While there is nothing to do it looks for the sources' rows, so that the first task need not: that look takes 2 us.
    while (!__all_sync(0xFFFFFFFFu, ptx::mbarrier_try_wait(smem.queue_full_at(queue.slot), queue.phase))) {
      if (sources_here) __nanosleep(40);
      else sources_here = sources_are_here(params, arrived, smem.epoch, lane);
    }
    const BlockTask task = smem.queue[queue.slot];
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.queue_empty_at(queue.slot));
    queue.advance();
    const auto kind = static_cast<TaskKind>(task.kind);
    if (kind == TaskKind::kNone) return;
    if (!is_gemm(kind)) continue;
    gather_task(params, smem, task, stage, policy, sources_here, lane);
  }
}

}  // namespace monomoe::cuda
