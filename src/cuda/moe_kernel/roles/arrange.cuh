// Task: arrange - some token rows of a block of more than kFewTokens, gathered from where their source pushed them into tiles that one bulk copy brings to
// shared memory: [K block][256 rows x 128 B], swizzled. GEMM1 reads a block's rows once per 128 weight rows, so it pays to sort them once. The
// math warps arrange before the first GEMM, the claiming warp while GEMMs run.
#pragma once

#include "cuda/moe_kernel/roles/arranged_rows.cuh"

namespace monomoe::cuda {

// One warp, one row: 512 bytes, four K blocks, at a time; kBatch loads are under way, since each comes from memory.
template <int kBatch>
__device__ __forceinline__ void arrange_row(const Params& params, const BlockTask& task, const TokenRow& from, int row, int lane) {
  const Problem& p = params.problem;
  uint8_t* to = arranged_codes(params, task.block) + row * 128 + (((lane % 8) ^ (row & 7)) << 4);
  float* scales = arranged_scales(params, task.block) + row;
  for (int64_t k_block = lane; k_block < p.hidden_blocks(); k_block += 32) scales[k_block * kGpuTokenBlock] = __ldcg(from.scales + k_block);
  for (int64_t first = lane / 8; first < p.hidden_blocks(); first += kBatch * 4) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      v[i] = make_uint4(0, 0, 0, 0);  // defined on every path, see combine_token
      if (first + i * 4 < p.hidden_blocks()) v[i] = __ldcg(reinterpret_cast<const uint4*>(from.codes + (first + i * 4) * kBlockK) + lane % 8);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i * 4 < p.hidden_blocks()) *reinterpret_cast<uint4*>(to + (first + i * 4) * kGpuTokenBlock * kBlockK) = v[i];
    }
  }
}

// Whether the last block that was arranged in the same memory has been multiplied. Blocks of few tokens in between have not used it.
__device__ __forceinline__ bool memory_is_free(const Params& params, int64_t block) {
  const auto* blocks = reinterpret_cast<const BlockInfo*>(params.workspace + params.local.blocks);
  for (int64_t earlier = block - params.local.window; earlier >= 0; earlier -= params.local.window) {
    if (__ldcg(&blocks[earlier].count) > kFewTokens) return ptx::load_acquire_gpu(block_done(params, earlier)) >= gemm1_tasks_of_block(params);
  }
  return true;
}

// Tells gather that so many pieces of a block are there, after all who wrote them.
__device__ __forceinline__ void publish_arranged(const Params& params, const BlockTask& task, uint32_t pieces) {
  ptx::fence_gpu();
  ptx::add_relaxed_gpu(block_arranged(params, task.block), pieces);
}

// Pieces of an arrange task before the GEMMs: every kArrangeTasks-th from task.index on, so that a block's tasks have even shares whatever its tokens.
__device__ __forceinline__ uint32_t pieces_of_task(const BlockTask& task) {
  const auto all = static_cast<uint32_t>(pieces_of_block(task));
  return (all - static_cast<uint32_t>(task.index) + kArrangeTasks - 1) / kArrangeTasks;
}
static_assert(kArrangeTasks * kArrangeRows <= kFewTokens, "a block that is arranged has a piece for each of its tasks");

// Before the first GEMM: memory that nobody has used, and all math warps.
__device__ __forceinline__ void arrange_task(const Params& params, const BlockTask& task, int math_thread) {
  static_assert(kArrangeRows == kMathWarps, "a row a warp");
  const int warp = math_thread / 32, lane = math_thread % 32;
  if (!is_arranged(task)) return;
  for (int row = static_cast<int>(task.index) * kArrangeRows + warp; row < task.count; row += kArrangeTasks * kArrangeRows) {
    arrange_row<8>(params, task, token_row(params, task.route_begin + row), row, lane);
  }
}

}  // namespace monomoe::cuda
