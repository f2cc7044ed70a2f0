// The kernel for NVFP4 and MXFP4 weights.
#include "cuda/launch.hpp"
#include "cuda/moe_kernel/kernel_launch.cuh"

namespace monomoe::cuda {

Result<void> prepare_fp4() { return prepare_kernel<Config<false>>(); }
Result<void> launch_fp4(const Params& params, int thread_blocks, cudaStream_t stream) {
  return launch_kernel<Config<false>>(params, thread_blocks, stream);
}

}  // namespace monomoe::cuda
