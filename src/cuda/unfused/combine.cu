// Combine: a thread block sums a token's live contributions in slot order from +0 in fp32 and rounds once. All of them are here:
// await_contributions.
#include "cuda/unfused/common.cuh"
#include "numerics/bf16.h"
#include "numerics/fp32.h"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kBlocksPerShare = 4;

__device__ void combine_four(const Params& call, int64_t token, int64_t channel) {
  const Problem& p = call.problem;
  const int32_t* ids = own_ids(call, token);
  const auto* rows = reinterpret_cast<const uint16_t*>(call.peers[call.self] + call.symmetric.contributions) + token * p.topk * p.hidden;
  float sum[4] = {};
  for (int slot = 0; slot < p.topk; ++slot) {
    if (ids[slot] < 0) continue;
    const ushort4 v = *reinterpret_cast<const ushort4*>(rows + slot * p.hidden + channel);
    const uint16_t part[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) sum[i] = add_rn(sum[i], bf16_decode(part[i]));
  }
  *reinterpret_cast<ushort4*>(call.y + token * p.hidden + channel) =
      make_ushort4(bf16_encode(sum[0]), bf16_encode(sum[1]), bf16_encode(sum[2]), bf16_encode(sum[3]));
}

__global__ __launch_bounds__(kThreads) void combine_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  if (is_over(call)) return;
  const int64_t num_tokens = tokens_of(call);
  for (int64_t token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    for (int64_t channel = 4 * threadIdx.x; channel < call.problem.hidden; channel += 4 * kThreads) combine_four(call, token, channel);
    // Whoever adds next waits for this rank's next arrival first.
    if (threadIdx.x == 0) arrivals_of(call, call.self)[token] = 0;
  }
}

Result<void> launch_combine(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) {
  combine_kernel<<<thread_blocks * kBlocksPerShare, kThreads, 0, stream>>>(params);
  return launched("combine");
}

}  // namespace

const Step kCombine{load<combine_kernel>, launch_combine};

}  // namespace monomoe::cuda::unfused
