// Launches the kernel of one rank. One translation unit per instantiation; this is all the rest of the library sees of them.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.hpp"
#include "cuda/moe_kernel/params.h"

namespace monomoe::cuda {

Result<void> prepare_fp4();
Result<void> prepare_fp8();
Result<void> launch_fp4(const Params& params, int thread_blocks, cudaStream_t stream);
Result<void> launch_fp8(const Params& params, int thread_blocks, cudaStream_t stream);

// Once per device before the first launch on it: shared memory beyond the default must be asked for.
inline Result<void> prepare_device() {
  if (auto done = prepare_fp4(); !done) return done;
  return prepare_fp8();
}

// thread_blocks: at most one per multiprocessor is resident; several ranks on one GPU share them out.
inline Result<void> launch_moe_kernel(const Params& params, int thread_blocks, cudaStream_t stream) {
  return params.problem.weights == WeightFormat::kFp8 ? launch_fp8(params, thread_blocks, stream) : launch_fp4(params, thread_blocks, stream);
}

}  // namespace monomoe::cuda
