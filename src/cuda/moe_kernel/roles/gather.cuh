// Role: gather - a warp of the moving warpgroup. It brings token rows: the intermediate and arranged rows by bulk copies of tiles, the
// rows of few tokens one by one from where their source pushed them.
// Waits on:  queue_full (claim), block_done or block_arranged (publish of other thread blocks, gpu scope), arrived (publish of all ranks, or their routes task, system scope),
//            tokens_empty[stage] (math)
// Signals:   tokens_full[stage] (of gathered rows one arrival per thread, when its copies have landed; of tiles all by one thread, and bytes), queue_empty
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

// Units that a K block has in a stage.
__device__ __forceinline__ int units_of_k_block(const BlockTask& task) { return has_few_tokens(task) ? 1 : task.form == BlockForm::kMiddle ? 2 : kUnits; }

// So many K blocks has a stage of this task, and so many stages its rows.
__device__ __forceinline__ int k_blocks_of_stage(int units) { return units == 1 ? kUnits : units == 2 ? kUnits / 2 : 1; }
__device__ __forceinline__ int stages_of(const BlockTask& task, int k_blocks) {
  const int units = units_of_k_block(task);
  return units == 1 ? (k_blocks + kUnits - 1) / kUnits : units == 2 ? (k_blocks + 1) / 2 : k_blocks;
}

// Brings a task's rows, which lie as tiles, for one half of the weight rows after the other (of few tokens for both at once). One thread, which arrives for all of the warp: the
// ring is short, so what it does between a stage's end and the next copies counts (a division there: 1,024 tokens, NVFP4, 514 us instead of 495).
template <class C>
__device__ __forceinline__ void stream_tiles(SharedStorage<C>& smem, const TokenTiles& tiles, const BlockTask& task, int k_blocks, int rounds,
                                             RingCursor<C::kTokenStages> stage, uint64_t policy) {
  const int units = units_of_k_block(task), most = k_blocks_of_stage(units), rows = block_rows(task);
  const bool joined = units == 1;  // the scales of four K blocks, by token
  const uint32_t bytes = rows * kBlockK, scale_bytes = joined ? rows * kTokenScaleBytes : rows * 4;
  const int64_t apart = tiles.rows_apart * kBlockK, scales_apart = tiles.rows_apart;
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    const uint8_t* codes = tiles.codes;
    const float* scales = tiles.scales;
#pragma unroll 1
    for (int left = k_blocks; left > 0;) {
      const uint32_t full = smem.tokens_full_at(stage.slot);
      const int count = min(left, most);
      wait_barrier(smem.tokens_empty_at(stage.slot), stage.phase);
      ptx::mbarrier_arrive_expect_tx(full, count * bytes + (joined ? 1 : count) * scale_bytes);
      ptx::mbarrier_arrive(full, kGatherThreads - 1);
      uint32_t to = smem.tokens_at(stage.slot), scales_to = smem.scales_at(stage.slot);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        if (i == 0 || !joined) ptx::bulk_copy(scales_to, scales, scale_bytes, full, policy);
        ptx::bulk_copy(to, codes, bytes, full, policy);
        to += units * kUnitBytes;
        scales_to += units * kSubtileTokens * 4;
        codes += apart;
        scales += scales_apart;
      }
      left -= count;
      stage.advance();
    }
  }
}

// Until the rows this task reads are written: the intermediate by GEMM1, arranged rows by the arrange tasks, the others by their sources.
__device__ __forceinline__ void await_rows(const Params& params, const BlockTask& task, uint64_t epoch, bool& sources_here, int lane) {
  const bool down = is_down(task);
  if (!down && !is_arranged(task)) {
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
  const bool tiled = is_arranged(task) || is_down(task);
  const bool aligned_scales = params.problem.hidden_blocks() % kUnits == 0;
  if (!tiled) find_rows(params, smem, task, thread);
  await_rows(params, task, smem.epoch, sources_here, thread);
  const int rounds = has_few_tokens(task) ? 1 : halves;
  if (tiled) {
    if (thread == 0) stream_tiles(smem, token_tiles(params, task), task, k_blocks, rounds, stage, policy);
    stage.skip(rounds * stages_of(task, k_blocks));
    __syncwarp();
    return;
  }
  for (int k_block = 0; k_block < k_blocks; k_block += kUnits) {
    wait_barrier(smem.tokens_empty_at(stage.slot), stage.phase);
    copy_rows(smem, task, stage.slot, k_block, min(kUnits, k_blocks - k_block), aligned_scales, thread);
    ptx::copy_async_arrive(smem.tokens_full_at(stage.slot));
    stage.advance();
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
