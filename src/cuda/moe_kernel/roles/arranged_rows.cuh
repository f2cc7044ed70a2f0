// Where token rows are: where their source pushed them, and arranged as tiles.
#pragma once

#include "cuda/moe_kernel/roles/claim.cuh"

namespace monomoe::cuda {

// The row of one route: own rows in the workspace, the others where their source pushed them.
struct TokenRow {
  const uint8_t* codes;
  const float* scales;
};
__device__ __forceinline__ TokenRow token_row(const Params& params, int64_t route) {
  const Problem& p = params.problem;
  const auto* routes = reinterpret_cast<const Route*>(params.workspace + params.local.routes);
  const int4 words = __ldcg(reinterpret_cast<const int4*>(routes + route));
  const int64_t src = words.x, token = words.y;
  const bool own = src == params.self;
  const int64_t index = own ? token : peer_block(src, params.self) * p.capacity + token;
  const uint8_t* codes = own ? params.workspace + params.local.own_codes : params.peers[params.self] + params.symmetric.row_codes;
  const uint8_t* scales = own ? params.workspace + params.local.own_scales : params.peers[params.self] + params.symmetric.row_scales;
  return {codes + index * p.hidden, reinterpret_cast<const float*>(scales) + index * p.hidden_blocks()};
}

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

// What gather waits for before GEMM1 of a block of many tokens.
__device__ __forceinline__ uint64_t pieces_of_block(const BlockTask& task) {
  return static_cast<uint64_t>((task.count + kSubtileTokens - 1) / kSubtileTokens);
}

// Rows of a block rounded up to whole groups of the swizzle.
__device__ __forceinline__ int block_rows(const BlockTask& task) { return (task.count + kRowGroup - 1) / kRowGroup * kRowGroup; }

// A block's intermediate: codes [K block][rows x 128 B] swizzled, scales [K block][rows].
__device__ __forceinline__ uint8_t* mid_codes(const Params& params, const BlockTask& task) {
  return params.workspace + params.local.mid_codes + task.route_begin * params.problem.padded_intermediate();
}
__device__ __forceinline__ float* mid_scales(const Params& params, const BlockTask& task) {
  return reinterpret_cast<float*>(params.workspace + params.local.mid_scales) + task.route_begin * params.problem.intermediate_blocks();
}
// Bytes from mid_codes to a row's K block; its 16-byte piece i is at ((i ^ (row % 8)) * 16).
__device__ __forceinline__ int64_t mid_row(const BlockTask& task, int64_t k_block, int row) {
  return (k_block * block_rows(task) + row) * kBlockK;
}

}  // namespace monomoe::cuda
