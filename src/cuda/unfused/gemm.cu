// Both GEMMs for both kinds of weights.
#include "cuda/unfused/gemm.cuh"

namespace monomoe::cuda::unfused {
namespace {

Result<void> launch(const UnfusedParams& params, bool down, int thread_blocks, cudaStream_t stream) {
  const bool is_fp8 = params.call.problem.weights == WeightFormat::kFp8;
  return is_fp8 ? launch_gemm<true>(params, down, thread_blocks, stream) : launch_gemm<false>(params, down, thread_blocks, stream);
}

}  // namespace

Result<void> gemm1(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) { return launch(params, false, thread_blocks, stream); }
Result<void> gemm2(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) { return launch(params, true, thread_blocks, stream); }

Result<void> prepare() {
  if (auto done = prepare_gemm<true>(); !done) return done;
  return prepare_gemm<false>();
}

}  // namespace monomoe::cuda::unfused
