// Host half of one instantiation: its shared memory and its launch.
#pragma once

#include "cuda/moe_kernel/moe_kernel.cuh"
#include "cuda/status.hpp"

namespace monomoe::cuda {

template <class C>
Result<void> prepare_kernel() {
  static_assert(sizeof(SharedStorage<C>) <= kSharedLimit, "shared storage is larger than a thread block of sm_90a may have");
  return check(cudaFuncSetAttribute(moe_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SharedStorage<C>)), "asking for shared memory");
}

template <class C>
Result<void> launch_kernel(const Params& params, int thread_blocks, cudaStream_t stream) {
  moe_kernel<C><<<thread_blocks, kThreads, sizeof(SharedStorage<C>), stream>>>(params);
  return check(cudaGetLastError(), "launching the kernel");
}

}  // namespace monomoe::cuda
