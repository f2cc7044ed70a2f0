// What every kernel of the unfused path begins with.
#pragma once

#include "cuda/moe_kernel/waits.cuh"
#include "cuda/status.hpp"
#include "cuda/unfused/steps.hpp"

namespace monomoe::cuda::unfused {

inline constexpr int kWarps = 8;  // of a thread block, where a kernel needs no other number
inline constexpr int kThreads = kWarps * 32;

// The rank has given up: the same answer in all threads of the block.
__device__ __forceinline__ bool is_over(const Params& call) { return __syncthreads_or(aborted(call)) != 0; }

__device__ __forceinline__ uint64_t epoch_of(const Params& call) { return call.state->epoch + 1; }
__device__ __forceinline__ int64_t tokens_of(const Params& call) {
  return call.num_tokens_device != nullptr ? *call.num_tokens_device : call.num_tokens;
}

__device__ __forceinline__ const UnfusedTotals& totals_of(const UnfusedParams& params) {
  return *reinterpret_cast<const UnfusedTotals*>(params.memory + params.layout.totals);
}
__device__ __forceinline__ float* sums_of(const UnfusedParams& params) {
  return reinterpret_cast<float*>(params.memory + params.layout.sums);
}
__device__ __forceinline__ const Route* routes_of(const Params& call) {
  return reinterpret_cast<const Route*>(call.workspace + call.local.routes);
}
// Expert ids of a token of this rank, as dispatch wrote them: -1 is a dropped slot.
__device__ __forceinline__ const int32_t* own_ids(const Params& call, int64_t token) {
  return reinterpret_cast<const int32_t*>(call.peers[call.self] + call.symmetric.route_ids) +
         (call.self * call.problem.capacity + token) * call.problem.topk;
}
__device__ __forceinline__ uint32_t* arrivals_of(const Params& call, int rank) {
  return reinterpret_cast<uint32_t*>(call.peers[rank] + call.symmetric.arrivals);
}

// For work that is dealt out warp by warp over the whole grid.
__device__ __forceinline__ int64_t warp_of_grid() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }
__device__ __forceinline__ int64_t warps_of_grid() { return static_cast<int64_t>(gridDim.x) * kWarps; }

// Loads the kernel now. CUDA loads it at its first launch otherwise, and may then wait for kernels that wait for this rank.
template <auto kKernel>
Result<void> load() {
  cudaFuncAttributes ignored{};
  return check(cudaFuncGetAttributes(&ignored, kKernel), "loading a kernel of the unfused launch");
}

inline Result<void> launched(const char* step) { return check(cudaGetLastError(), std::string("launching ") + step); }

}  // namespace monomoe::cuda::unfused
