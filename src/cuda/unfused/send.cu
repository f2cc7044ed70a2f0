// Contributions: GEMM2's fp32 sums, rounded to bf16, into the memory of each token's rank. A warp for each route.
#include "cuda/unfused/common.cuh"
#include "numerics/bf16.h"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kBlocksPerShare = 4;

__device__ uint32_t bf16_pair(float low, float high) { return bf16_encode(low) | static_cast<uint32_t>(bf16_encode(high)) << 16; }

__device__ void send_row(const UnfusedParams& params, int64_t number, int lane) {
  const Params& call = params.call;
  const Problem& p = call.problem;
  const Route route = routes_of(call)[number];
  const float* sums = sums_of(params) + number * p.hidden;
  auto* row = reinterpret_cast<uint16_t*>(call.peers[route.src] + call.symmetric.contributions) +
              (static_cast<int64_t>(route.token) * p.topk + route.topk_slot) * p.hidden;
  for (int64_t channel = 4 * lane; channel < p.hidden; channel += 128) {
    const float4 v = *reinterpret_cast<const float4*>(sums + channel);
    *reinterpret_cast<uint2*>(row + channel) = make_uint2(bf16_pair(v.x, v.y), bf16_pair(v.z, v.w));
  }
  // A row counts as all of its pieces at once.
  __threadfence_system();
  __syncwarp();
  if (lane == 0) ptx::add_relaxed_system(arrivals_of(call, route.src) + route.token, static_cast<uint32_t>(gemm2_tiles(p.hidden)));
}

__global__ __launch_bounds__(kThreads) void send_kernel(const __grid_constant__ UnfusedParams params) {
  if (is_over(params.call)) return;
  for (int64_t route = warp_of_grid(); route < totals_of(params).routes; route += warps_of_grid()) {
    send_row(params, route, static_cast<int>(threadIdx.x % 32));
  }
}

Result<void> launch_send(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) {
  send_kernel<<<thread_blocks * kBlocksPerShare, kThreads, 0, stream>>>(params);
  return launched("the contributions");
}

}  // namespace

const Step kSend{load<send_kernel>, launch_send};

}  // namespace monomoe::cuda::unfused
