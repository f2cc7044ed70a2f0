// Task: combine - a chunk of tokens: once all pieces of a token's contributions are here, its live slots are summed in slot
// order from +0 in fp32 and rounded once.
#pragma once

#include "cuda/moe_kernel/roles/dispatch.cuh"

namespace monomoe::cuda {

__device__ __forceinline__ void add_eight(float (&sum)[8], uint4 v) {
  const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) sum[i] = add_rn(sum[i], bf16_decode(static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2)))));
}

__device__ __forceinline__ void store_eight(uint16_t* y, const float (&sum)[8]) {
  *reinterpret_cast<uint4*>(y) = make_uint4(ptx::encode_bf16_pair(sum[0], sum[1]), ptx::encode_bf16_pair(sum[2], sum[3]),
                                            ptx::encode_bf16_pair(sum[4], sum[5]), ptx::encode_bf16_pair(sum[6], sum[7]));
}

// Channels [256 * part, ...) in steps of 256 * parts, kSteps at a time.
template <int kSteps>
__device__ __forceinline__ bool combine_token(const Params& params, int64_t token, int part, int parts, int lane) {
  const Problem& p = params.problem;
  const uint8_t* own = params.peers[params.self];
  const auto* ids = reinterpret_cast<const int32_t*>(own + params.symmetric.route_ids) + (params.self * p.capacity + token) * p.topk;
  const uint32_t live = __ballot_sync(0xFFFFFFFFu, lane < p.topk && __ldcg(ids + min(lane, static_cast<int>(p.topk) - 1)) >= 0);
  auto* arrivals = reinterpret_cast<uint32_t*>(params.peers[params.self] + params.symmetric.arrivals) + token;
  const uint64_t pieces = static_cast<uint64_t>(__popc(live)) * gemm2_tiles(p.hidden);
  const bool here = await_at_least(
      params, [&] { return uint64_t{ptx::load_acquire_system(arrivals)}; }, pieces, TaskKind::kCombine, WaitFlag::kArrivals,
      static_cast<uint64_t>(params.self), static_cast<uint64_t>(token));
  if (!__all_sync(0xFFFFFFFFu, here)) return false;
  const auto* rows = reinterpret_cast<const uint16_t*>(own + params.symmetric.contributions) + token * p.topk * p.hidden;
  const int64_t step = parts * 256;
  for (int64_t channel = part * 256 + lane * 8; channel < p.hidden; channel += kSteps * step) {
    float sum[kSteps][8] = {};
    for (uint32_t left = live; left != 0;) {
      constexpr int kBatch = 8;
      uint4 v[kSteps][kBatch];
      uint32_t taken = left;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const uint16_t* row = rows + (__ffs(taken) - 1) * p.hidden + channel;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          v[k][i] = make_uint4(0, 0, 0, 0);  // defined on every path: else its registers count as live through all tasks
          if (taken != 0 && channel + k * step < p.hidden) v[k][i] = __ldcg(reinterpret_cast<const uint4*>(row + k * step));
        }
        taken &= taken - 1;
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (left == 0) break;
        left &= left - 1;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) add_eight(sum[k], v[k][i]);
      }
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (channel + k * step < p.hidden) store_eight(params.y + token * p.hidden + channel + k * step, sum[k]);
    }
  }
  return true;
}

__device__ __forceinline__ void combine_task(const Params& params, int64_t index, int64_t num_tokens, int math_thread) {
  const int lane = math_thread % 32, warp = math_thread / 32;
  const auto tokens = static_cast<int>(combine_chunk(num_tokens));
  const int parts = kMathWarps / tokens;  // warps of a token
  const int64_t token = index * tokens + warp / parts;
  bool done = token < num_tokens;
  // Loads under way are what many tokens are bound by; few are bound by the code's way to here.
  if (done) done = parts == 1 ? combine_token<2>(params, token, 0, 1, lane) : combine_token<1>(params, token, warp % parts, parts, lane);
  if (parts > 1) math_barrier();  // every warp has seen the counter
  else __syncwarp();
  // Safe: whoever adds next waits for this rank's next arrival first, and that is published after this call.
  auto* arrivals = reinterpret_cast<uint32_t*>(params.peers[params.self] + params.symmetric.arrivals);
  if (done && lane == 0 && warp % parts == 0) arrivals[token] = 0;
}

}  // namespace monomoe::cuda
