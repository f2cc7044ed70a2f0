// Both GEMMs for both kinds of weights.
#include "cuda/unfused/gemm.cuh"

namespace monomoe::cuda::unfused {
namespace {

Result<void> prepare() {
  if (auto done = prepare_gemm<true>(); !done) return done;
  return prepare_gemm<false>();
}

template <bool kDown>
Result<void> launch(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) {
  const bool is_fp8 = params.call.problem.weights == WeightFormat::kFp8;
  return is_fp8 ? launch_gemm<true>(params, kDown, thread_blocks, stream) : launch_gemm<false>(params, kDown, thread_blocks, stream);
}

}  // namespace

const Step kGemm1{prepare, launch<false>};
const Step kGemm2{prepare, launch<true>};

}  // namespace monomoe::cuda::unfused
