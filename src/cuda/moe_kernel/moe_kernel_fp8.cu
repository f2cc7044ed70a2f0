// The kernel for FP8 block weights.
#include "cuda/launch.hpp"
#include "cuda/moe_kernel/kernel_launch.cuh"

namespace monomoe::cuda {

Result<void> prepare_fp8() { return prepare_kernel<Config<true>>(); }
Result<void> launch_fp8(const Params& params, int thread_blocks, cudaStream_t stream) {
  return launch_kernel<Config<true>>(params, thread_blocks, stream);
}

}  // namespace monomoe::cuda
