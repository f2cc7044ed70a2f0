// Where token rows are: where their source pushed them, and arranged as tiles.
#pragma once

#include "cuda/moe_kernel/roles/tasks.cuh"

namespace monomoe::cuda {

// The row of one route: own rows in the workspace, the others where their source pushed them.
struct TokenRow {
  const uint8_t* codes;
  const float* scales;
};
// Where a row is, as one number: row << 1 | whether it is the rank's own.
__device__ __forceinline__ int64_t row_place(const Params& params, int64_t route) {
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int4 words = __ldcg(reinterpret_cast<const int4*>(routes + route));
  const int64_t src = words.x, token = words.y;
  return src == params.self ? token << 1 | 1 : (peer_block(src, params.self) * params.problem.capacity + token) << 1;
}
__device__ __forceinline__ TokenRow row_at(const Params& params, int64_t place) {
  const Problem& p = params.problem;
  const bool own = (place & 1) != 0;
  const uint8_t* codes = own ? params.workspace + params.local.own_codes : params.peers[params.self] + params.symmetric.row_codes;
  const uint8_t* scales = own ? params.workspace + params.local.own_scales : params.peers[params.self] + params.symmetric.row_scales;
  return {codes + (place >> 1) * p.hidden, reinterpret_cast<const float*>(scales) + (place >> 1) * p.hidden_blocks()};
}
__device__ __forceinline__ TokenRow token_row(const Params& params, int64_t route) { return row_at(params, row_place(params, route)); }

__device__ __forceinline__ uint8_t* arranged_codes(const Params& params, int64_t block) {
  return params.workspace + params.local.arranged_codes + block % params.local.window * kGpuTokenBlock * params.problem.hidden;
}
__device__ __forceinline__ float* arranged_scales(const Params& params, int64_t block) {
  return reinterpret_cast<float*>(params.workspace + params.local.arranged_scales) + block % params.local.window * kGpuTokenBlock * params.problem.hidden_blocks();
}
__device__ __forceinline__ uint32_t* block_arranged(const Params& params, int64_t block) {
  return reinterpret_cast<uint32_t*>(params.workspace + params.local.block_arranged) + block;
}
__device__ __forceinline__ uint32_t* block_done(const Params& params, int64_t block) {
  return reinterpret_cast<uint32_t*>(params.workspace + params.local.block_done) + block;
}
// What block_done reaches when a block's intermediate is whole.
__device__ __forceinline__ uint64_t gemm1_tasks_of_block(const Params& params) { return static_cast<uint64_t>(params.problem.intermediate_blocks()); }

// What gather waits for before GEMM1 of a block that is arranged.
__device__ __forceinline__ uint64_t pieces_of_block(const BlockTask& task) {
  return static_cast<uint64_t>((task.count + kArrangeRows - 1) / kArrangeRows);
}

// Rows of a block rounded up to whole groups of the swizzle.
__device__ __forceinline__ int block_rows(const BlockTask& task) { return (task.count + kRowGroup - 1) / kRowGroup * kRowGroup; }

// A block's intermediate: codes [K block][rows x 128 B] swizzled, scales [K block][rows], of few tokens [four K blocks][rows][4].
__device__ __forceinline__ uint8_t* mid_codes(const Params& params, const BlockTask& task) {
  return params.workspace + params.local.mid_codes + task.route_begin * params.problem.padded_intermediate();
}
__device__ __forceinline__ float* mid_scales(const Params& params, const BlockTask& task) {
  return reinterpret_cast<float*>(params.workspace + params.local.mid_scales) + task.route_begin * mid_scale_blocks(params.problem);
}
__device__ __forceinline__ float* few_mid_scales(const Params& params, const BlockTask& task, int64_t k_block) {
  return mid_scales(params, task) + k_block / kUnits * kUnits * block_rows(task) + k_block % kUnits;
}
// Bytes from mid_codes to a row's K block; its 16-byte piece i is at ((i ^ (row % 8)) * 16).
__device__ __forceinline__ int64_t mid_row(const BlockTask& task, int64_t k_block, int row) {
  return (k_block * block_rows(task) + row) * kBlockK;
}

}  // namespace monomoe::cuda
