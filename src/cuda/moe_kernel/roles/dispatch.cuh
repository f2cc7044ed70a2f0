// Task: dispatch - a chunk of tokens, one per math warp: quantise the row once, push it to every rank that serves it; ids and weights go to all.
#pragma once

#include "cuda/moe_kernel/roles/math_rings.cuh"
#include "cuda/moe_kernel/roles/quantise.cuh"
#include "cuda/moe_kernel/roles/signals.cuh"

namespace monomoe::cuda {

__device__ __forceinline__ bool await_drained(const Params& params, uint64_t epoch, int lane) {
  bool ok = true;
  for (int dst = lane; dst < params.problem.ranks; dst += 32) {
    if (dst == params.self) continue;
    const uint64_t* flag = &symmetric_flags(params, params.self)->drained[dst];
    ok &= await_at_least(
        params, [&] { return ptx::load_acquire_system(flag); }, epoch - 1, TaskKind::kDispatch, WaitFlag::kDrained,
        static_cast<uint64_t>(dst), 0);
  }
  return __all_sync(0xFFFFFFFFu, ok);
}

// Ids and weights of one token to every rank, if this warp sends them; returns the mask of ranks that serve it, the same in all lanes.
__device__ __forceinline__ uint64_t send_routes(const Params& params, int64_t token, bool sends, int lane) {
  const Problem& p = params.problem;
  uint32_t low = 0, high = 0;
  if (lane < p.topk) {
    const int64_t at = token * p.topk + lane;
    int64_t id = params.wide_ids ? static_cast<const int64_t*>(params.topk_ids)[at] : static_cast<const int32_t*>(params.topk_ids)[at];
    if (id >= p.experts) {
      raise_error(params, DeviceErrorCode::kBadExpertId, TaskKind::kDispatch, WaitFlag::kArrived, static_cast<uint64_t>(params.self),
                  static_cast<uint64_t>(p.experts), static_cast<uint64_t>(id), static_cast<uint64_t>(at));
      id = -1;
    }
    const int32_t expert = id < 0 ? -1 : static_cast<int32_t>(id);
    const float weight = id < 0 ? 0.0f : params.topk_weights[at];
    const int64_t place = (static_cast<int64_t>(params.self) * p.capacity + token) * p.topk + lane;
    for (int dst = 0; sends && dst < p.ranks; ++dst) {
      reinterpret_cast<int32_t*>(params.peers[dst] + params.symmetric.route_ids)[place] = expert;
      reinterpret_cast<float*>(params.peers[dst] + params.symmetric.route_weights)[place] = weight;
    }
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

// 256 channels from base on, to every rank that serves the token.
__device__ __forceinline__ void send_channels(const Params& params, int64_t token, int64_t base, uint4 v, uint64_t serving, int lane) {
  const Problem& p = params.problem;
  const int64_t group = base / kBlockK + lane / 16;
  const bool live = base + lane * 8 < p.hidden;
  uint32_t words[2] = {v.x, v.y};
  float scale = 0.0f;
  if (params.x_scales == nullptr) {
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = bf16_decode(static_cast<uint16_t>(pairs[i / 2] >> (16 * (i % 2))));
    quantise_eight(x, words, scale);
  } else if (live) {
    scale = __ldg(params.x_scales + token * p.hidden_blocks() + group);
  }
  const uint4 chunk = physical_chunk(words, lane);
  if (!live) return;
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

// Channels [256 * part, ...) in steps of 256 * parts of a token's row. Each load comes from memory, so four are under way; the loop is not unrolled,
// since its instructions come from memory too.
__device__ __forceinline__ void dispatch_row(const Params& params, int64_t token, int part, int parts, int lane) {
  const int64_t step = parts * 256, hidden = params.problem.hidden, first = part * 256;
  const auto load = [&](int64_t base) { return load_eight(params, token, base + lane * 8); };
  uint4 v0 = load(first), v1 = load(first + step), v2 = load(first + 2 * step), v3 = load(first + 3 * step);
  const uint64_t serving = send_routes(params, token, part == 0, lane);
  if (serving == 0) return;
#pragma unroll 1
  for (int64_t base = first; base < hidden; base += step) {
    send_channels(params, token, base, v0, serving, lane);
    v0 = v1;
    v1 = v2;
    v2 = v3;
    v3 = load(base + 4 * step);
  }
}

__device__ __forceinline__ void dispatch_task(const Params& params, int64_t index, uint64_t epoch, int64_t num_tokens, int math_thread) {
  const int lane = math_thread % 32, warp = math_thread / 32;
  const auto tokens = static_cast<int>(dispatch_chunk(num_tokens));
  await_drained(params, epoch, lane);
  const int parts = max(1, kMathWarps / tokens);  // warps of a token
  const int64_t end = min_of((index + 1) * tokens, num_tokens);
  for (int64_t token = index * tokens + warp / parts; token < end; token += kMathWarps / parts) dispatch_row(params, token, warp % parts, parts, lane);
}

}  // namespace monomoe::cuda
