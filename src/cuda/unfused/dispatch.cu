// Dispatch: a thread block quantises a token's row once and writes it to every rank that serves it; ids and weights go to all ranks.
#include "cuda/unfused/common.cuh"
#include "cuda/unfused/quantise.cuh"
#include "numerics/bf16.h"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kBlocksPerShare = 4;

// What the caller gave for slot `slot` of the token; ids that are not below the number of experts are the caller's mistake.
__device__ int64_t given_id(const Params& call, int64_t token, int slot) {
  const int64_t at = token * call.problem.topk + slot;
  return call.wide_ids ? static_cast<const int64_t*>(call.topk_ids)[at] : int64_t{static_cast<const int32_t*>(call.topk_ids)[at]};
}

// Bit r: rank r serves one of the token's slots. The same in all lanes.
__device__ uint64_t serving_ranks(const Params& call, int64_t token, int lane) {
  uint64_t mask = 0;
  if (lane < call.problem.topk) {
    const int64_t id = given_id(call, token, lane);
    if (id >= 0 && id < call.problem.experts) mask = uint64_t{1} << (call.serving[call.self * call.problem.experts + id] >> 16);
  }
  const uint64_t high = __reduce_or_sync(0xFFFFFFFFu, static_cast<uint32_t>(mask >> 32));
  return high << 32 | __reduce_or_sync(0xFFFFFFFFu, static_cast<uint32_t>(mask));
}

__device__ void send_routes(const Params& call, int64_t token, int lane) {
  const Problem& p = call.problem;
  if (lane >= p.topk) return;
  const int64_t at = token * p.topk + lane;
  const int64_t given = given_id(call, token, lane);
  if (given >= p.experts) {
    raise_error(call, DeviceErrorCode::kBadExpertId, TaskKind::kDispatch, WaitFlag::kArrived, static_cast<uint64_t>(call.self),
                static_cast<uint64_t>(p.experts), static_cast<uint64_t>(given), static_cast<uint64_t>(at));
  }
  const bool live = given >= 0 && given < p.experts;
  const int32_t id = live ? static_cast<int32_t>(given) : -1;
  const float weight = live ? call.topk_weights[at] : 0.0f;
  const int64_t place = call.self * p.capacity * p.topk + at;
  for (int dst = 0; dst < p.ranks; ++dst) {
    reinterpret_cast<int32_t*>(call.peers[dst] + call.symmetric.route_ids)[place] = id;
    reinterpret_cast<float*>(call.peers[dst] + call.symmetric.route_weights)[place] = weight;
  }
}

// Channels 4 * lane .. + 3 of one group of the row.
__device__ QuantisedFour stage_group(const Params& call, int64_t token, int64_t group, int lane) {
  const int64_t at = token * call.problem.hidden + group * kBlockK + 4 * lane;
  if (call.x_scales != nullptr) {
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(call.x) + at);
    return {codes, call.x_scales[token * call.problem.hidden_blocks() + group]};
  }
  const uint2 pairs = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(call.x) + at);
  const float x[4] = {bf16_decode(static_cast<uint16_t>(pairs.x)), bf16_decode(static_cast<uint16_t>(pairs.x >> 16)),
                      bf16_decode(static_cast<uint16_t>(pairs.y)), bf16_decode(static_cast<uint16_t>(pairs.y >> 16))};
  return quantise_four(x);
}

__device__ void store_group(const Params& call, int dst, int64_t token, int64_t group, QuantisedFour staged, int lane) {
  const Problem& p = call.problem;
  const bool own = dst == call.self;
  uint8_t* codes = own ? call.workspace + call.local.own_codes : call.peers[dst] + call.symmetric.row_codes;
  uint8_t* scales = own ? call.workspace + call.local.own_scales : call.peers[dst] + call.symmetric.row_scales;
  const int64_t row = own ? token : peer_block(call.self, dst) * p.capacity + token;
  *reinterpret_cast<uint32_t*>(codes + row * p.hidden + group * kBlockK + place_of_four(lane)) = staged.codes;
  if (lane == 0) reinterpret_cast<float*>(scales)[row * p.hidden_blocks() + group] = staged.scale;
}

__global__ __launch_bounds__(kThreads) void dispatch_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  if (is_over(call)) return;
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t num_tokens = tokens_of(call);
  for (int64_t token = blockIdx.x; token < num_tokens; token += gridDim.x) {
    const uint64_t serving = serving_ranks(call, token, lane);
    if (warp == 0) send_routes(call, token, lane);
    if (serving == 0) continue;
    for (int64_t group = warp; group < call.problem.hidden_blocks(); group += kWarps) {
      const QuantisedFour staged = stage_group(call, token, group, lane);
      for (int dst = 0; dst < call.problem.ranks; ++dst) {
        if ((serving >> dst & 1) != 0) store_group(call, dst, token, group, staged, lane);
      }
    }
  }
  __threadfence_system();
}

Result<void> launch_dispatch(const UnfusedParams& params, int thread_blocks, cudaStream_t stream) {
  dispatch_kernel<<<thread_blocks * kBlocksPerShare, kThreads, 0, stream>>>(params);
  return launched("dispatch");
}

}  // namespace

const Step kDispatch{load<dispatch_kernel>, launch_dispatch};

}  // namespace monomoe::cuda::unfused
