// What a rank tells all ranks.
#pragma once

#include "cuda/moe_kernel/waits.cuh"

namespace monomoe::cuda {

// This rank has read every row its peers sent in this call: they may send the next.
__device__ __forceinline__ void publish_drained(const Params& params, uint64_t epoch) {
  ptx::fence_system();
#pragma unroll 1
  for (int src = 0; src < params.problem.ranks; ++src) ptx::store_relaxed_system(&symmetric_flags(params, src)->drained[params.self], epoch);
}

// The ids and weights that this rank sends in this call are written: tell every rank. One fence for all of them.
__device__ __forceinline__ void publish_ids(const Params& params, uint64_t epoch, int64_t num_tokens) {
#pragma unroll 1
  for (int dst = 0; dst < params.problem.ranks; ++dst) {
    SymmetricFlags* flags = symmetric_flags(params, dst);
    ptx::store_relaxed_system(&flags->num_tokens[params.self], static_cast<uint64_t>(num_tokens));
    ptx::store_relaxed_system(&flags->layer[params.self], params.layer_tag);
  }
  ptx::fence_system();
#pragma unroll 1
  for (int dst = 0; dst < params.problem.ranks; ++dst) ptx::store_relaxed_system(&symmetric_flags(params, dst)->ids_arrived[params.self], epoch);
}

// The rows that it sends, if it has any, are written, and a fence for the system lies behind them.
__device__ __forceinline__ void publish_arrived(const Params& params, uint64_t epoch) {
#pragma unroll 1
  for (int dst = 0; dst < params.problem.ranks; ++dst) ptx::store_relaxed_system(&symmetric_flags(params, dst)->arrived[params.self], epoch);
}

}  // namespace monomoe::cuda
