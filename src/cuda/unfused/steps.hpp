// The launches of a call on the unfused path, in order. A kernel that waits for another rank is one thread block, so that the kernels it waits
// for find room on the same GPU; all others wait for nothing. Once a rank has given up, each of its kernels leaves at once.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.hpp"
#include "cuda/unfused/params.h"

namespace monomoe::cuda::unfused {

// thread_blocks: the rank's share of the multiprocessors.
using Step = Result<void> (*)(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);

Result<void> await_drained(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);        // waits
Result<void> dispatch(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> await_arrived(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);        // waits
Result<void> list_routes(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> gemm1(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> activate(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> gemm2(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> send(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
Result<void> await_contributions(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);  // waits
Result<void> combine(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);

inline constexpr Step kSteps[] = {await_drained, dispatch, await_arrived, list_routes, gemm1, activate, gemm2, send, await_contributions, combine};

// Once per device: shared memory beyond the default.
Result<void> prepare();

}  // namespace monomoe::cuda::unfused
