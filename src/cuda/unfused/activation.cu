// The activation: GEMM1's fp32 sums -> SwiGLU -> the quantised intermediate, route weight in its scale. A warp for each 128 channels of a
// route.
#include "cuda/unfused/common.cuh"
#include "cuda/unfused/quantise.cuh"
#include "numerics/swiglu.h"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kBlocksPerShare = 4;

// Place of an intermediate channel's gate row among the packed rows; its up row stands kInterleave behind it.
__device__ int64_t gate_row(int64_t channel) { return channel / kInterleave * (2 * kInterleave) + channel % kInterleave; }

__device__ void activate_group(const UnfusedParams& params, int64_t route, int64_t group, int lane) {
  const Params& call = params.call;
  const Problem& p = call.problem;
  const float* sums = sums_of(params) + route * 2 * p.padded_intermediate() + gate_row(group * kBlockK + 4 * lane);
  const float4 gate = *reinterpret_cast<const float4*>(sums), up = *reinterpret_cast<const float4*>(sums + kInterleave);
  const float limit = call.swiglu_limit;
  const float h[4] = {swiglu(gate.x, up.x, limit), swiglu(gate.y, up.y, limit), swiglu(gate.z, up.z, limit), swiglu(gate.w, up.w, limit)};
  const QuantisedFour middle = quantise_four(h);
  uint8_t* codes = call.workspace + call.local.mid_codes + route * p.padded_intermediate() + group * kBlockK;
  *reinterpret_cast<uint32_t*>(codes + place_of_four(lane)) = middle.codes;
  auto* scales = reinterpret_cast<float*>(call.workspace + call.local.mid_scales);
  if (lane == 0) scales[route * p.intermediate_blocks() + group] = route_scale(middle.scale, routes_of(call)[route].weight);
}

__global__ __launch_bounds__(kThreads) void activation_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  if (is_over(call)) return;
  // GEMM1 has ended, so this rank has read its peers' rows: they may send the next call's.
  if (blockIdx.x == 0 && threadIdx.x < call.problem.ranks) {
    ptx::store_release_system(&symmetric_flags(call, static_cast<int>(threadIdx.x))->drained[call.self], epoch_of(call));
  }
  const int64_t groups = call.problem.intermediate_blocks();
  for (int64_t work = warp_of_grid(); work < totals_of(params).routes * groups; work += warps_of_grid()) {
    activate_group(params, work / groups, work % groups, static_cast<int>(threadIdx.x % 32));
  }
}

Result<void> launch_activate(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) {
  activation_kernel<<<thread_blocks * kBlocksPerShare, kThreads, 0, stream>>>(params);
  return launched("the activation");
}

}  // namespace

const Step kActivate{load<activation_kernel>, launch_activate};

}  // namespace monomoe::cuda::unfused
