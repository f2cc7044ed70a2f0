// Task: dispatch - a chunk of tokens, several math warps each, or one for one or two: quantise the row once, push it to every rank that serves it.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"
#include "cuda/moe_kernel/roles/quantise.cuh"
#include "cuda/moe_kernel/roles/send_ids.cuh"

namespace monomoe::cuda {

// The mask of ranks that serve a token, the same in all lanes.
__device__ __forceinline__ uint64_t ranks_serving(const Params& params, int64_t token, int lane) {
  const Problem& p = params.problem;
  uint32_t low = 0, high = 0;
  if (lane < p.topk) {
    const int64_t at = token * p.topk + lane;
    const int32_t expert = expert_of(params, own_id(params, at), at);
    if (expert >= 0) {
      const int rank = __ldg(params.serving + params.self * p.experts + expert) >> 16;
      if (rank < 32) low = 1u << rank; else high = 1u << (rank - 32);
    }
  }
  return static_cast<uint64_t>(__reduce_or_sync(0xFFFFFFFFu, high)) << 32 | __reduce_or_sync(0xFFFFFFFFu, low);
}

// Eight neighbouring channels of the row: bf16, or codes (x, y) in a row that is quantised already.
__device__ __forceinline__ uint4 load_eight(const Params& params, int64_t token, int64_t channel) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (channel >= params.problem.hidden) return v;
  const int64_t at = token * params.problem.hidden + channel;
  if (params.x_scales == nullptr) return __ldg(reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(params.x) + at));
  const uint2 codes = __ldg(reinterpret_cast<const uint2*>(static_cast<const uint8_t*>(params.x) + at));
  v.x = codes.x;
  v.y = codes.y;
  return v;
}

// The codes of 256 channels from base on, as they lie in memory, and their scale, to every rank that serves the token.
__device__ __forceinline__ void send_codes(const Params& params, int64_t token, int64_t base, uint4 chunk, float scale, uint64_t serving, int lane) {
  const Problem& p = params.problem;
  if (base + lane * 8 >= p.hidden) return;
  const int64_t group = base / kBlockK + lane / 16;
#pragma unroll 1
  for (uint64_t left = serving; left != 0; left &= left - 1) {
    const int dst = __ffsll(static_cast<long long>(left)) - 1;
    const bool own = dst == params.self;
    const int64_t row = own ? token : peer_block(params.self, dst) * p.capacity + token;
    uint8_t* codes = own ? params.workspace + params.local.own_codes : params.peers[dst] + params.symmetric.row_codes;
    uint8_t* scales = own ? params.workspace + params.local.own_scales : params.peers[dst] + params.symmetric.row_scales;
    if (lane % 16 < 8) *reinterpret_cast<uint4*>(codes + row * p.hidden + group * kBlockK + (lane % 8) * 16) = chunk;
    if (lane % 16 == 8) reinterpret_cast<float*>(scales)[row * p.hidden_blocks() + group] = scale;
  }
}

// kGroups times 256 channels: from base, base + step, ... on. Channels past the end are zeros, and are not sent.
template <int kGroups>
__device__ __forceinline__ void send_channels(const Params& params, int64_t token, int64_t base, int64_t step, const uint4 (&v)[kGroups], uint64_t serving,
                                              int lane) {
  uint32_t words[kGroups][2];
  float scale[kGroups] = {};
  if (params.x_scales == nullptr) {
    float x[kGroups][8];
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      const uint32_t pairs[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) x[k][i] = bf16_decode(static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2))));
    }
    quantise_eight(x, words, scale, lane);
  } else {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      words[k][0] = v[k].x;
      words[k][1] = v[k].y;
      const int64_t group = (base + k * step) / kBlockK + lane / 16;
      if (group < params.problem.hidden_blocks()) scale[k] = __ldg(params.x_scales + token * params.problem.hidden_blocks() + group);
    }
  }
#pragma unroll
  for (int k = 0; k < kGroups; ++k) send_codes(params, token, base + k * step, physical_chunk(words[k], lane), scale[k], serving, lane);
}

// Channels [256 * part, ...) in steps of 256 * parts of a token's row, kGroups steps at a time. Each load comes from memory, so twice as many are under
// way; the loop is not unrolled, since its instructions come from memory too.
template <int kGroups>
__device__ __forceinline__ void dispatch_row(const Params& params, int64_t token, int part, int parts, int lane) {
  const int64_t step = parts * 256, hidden = params.problem.hidden, first = part * 256;
  const auto load = [&](uint4 (&v)[kGroups], int64_t base) {
#pragma unroll
    for (int k = 0; k < kGroups; ++k) v[k] = load_eight(params, token, base + k * step + lane * 8);
  };
  uint4 now[kGroups], next[kGroups];
  load(now, first);
  load(next, first + kGroups * step);
  const uint64_t serving = ranks_serving(params, token, lane);
  if (serving == 0) return;
#pragma unroll 1
  for (int64_t base = first; base < hidden; base += kGroups * step) {
    uint4 later[kGroups];
    load(later, base + 2 * kGroups * step);
    send_channels<kGroups>(params, token, base, step, now, serving, lane);
#pragma unroll
    for (int k = 0; k < kGroups; ++k) {
      now[k] = next[k];
      next[k] = later[k];
    }
  }
}

__device__ __forceinline__ void dispatch_task(const Params& params, int64_t index, uint64_t epoch, int64_t num_tokens, bool& rows_missing, int math_thread) {
  const int lane = math_thread % 32, warp = math_thread / 32;
  const auto tokens = static_cast<int>(dispatch_chunk(num_tokens));
  if (!await_drained(params, epoch, lane)) {
    rows_missing = true;
    return;
  }
  const int parts = max(1, kMathWarps / tokens);  // warps of a token
  const int64_t end = min_of((index + 1) * tokens, num_tokens);
  // Two groups at a time hide each other's latencies where there are many; where there are few, the shorter code is here sooner.
  if (parts == 1) {
    for (int64_t token = index * tokens + warp; token < end; token += kMathWarps) dispatch_row<2>(params, token, 0, 1, lane);
  } else if (const int64_t token = index * tokens + warp / parts; token < end) {
    dispatch_row<1>(params, token, warp % parts, parts, lane);
  }
}

}  // namespace monomoe::cuda
