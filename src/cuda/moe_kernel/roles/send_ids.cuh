// Ids and weights of this rank's routes to every rank, which all build their lists from them.
#pragma once

#include "cuda/moe_kernel/roles/signals.cuh"
#include "cuda/moe_kernel/shared_storage.cuh"

namespace monomoe::cuda {

// Until every peer has read what it was sent in the call before. One warp; the same in all lanes.
__device__ __forceinline__ bool await_drained(const Params& params, uint64_t epoch, int lane) {
  bool ok = true;
#pragma unroll 1
  for (int dst = lane; dst < params.problem.ranks; dst += 32) {
    if (dst == params.self) continue;
    const uint64_t* flag = &symmetric_flags(params, params.self)->drained[dst];
    ok &= await_at_least(
        params, [&] { return ptx::load_acquire_system(flag); }, epoch - 1, TaskKind::kDispatch, WaitFlag::kDrained,
        static_cast<uint64_t>(dst), 0);
  }
  ok = __all_sync(0xFFFFFFFFu, ok);
  __syncwarp();  // what one lane has seen, all have
  return ok;
}

// The id of this rank's route `at`, counted over [token][slot], as given.
__device__ __forceinline__ int64_t own_id(const Params& params, int64_t at) {
  return params.wide_ids ? static_cast<const int64_t*>(params.topk_ids)[at] : static_cast<const int32_t*>(params.topk_ids)[at];
}
// The expert it names; -1: none. One that cannot be ends the call for all ranks.
__device__ __forceinline__ int32_t expert_of(const Params& params, int64_t id, int64_t at) {
  if (id < params.problem.experts) return id < 0 ? -1 : static_cast<int32_t>(id);
  raise_error(params, DeviceErrorCode::kBadExpertId, TaskKind::kDispatch, WaitFlag::kArrived, static_cast<uint64_t>(params.self),
              static_cast<uint64_t>(params.problem.experts), static_cast<uint64_t>(id), static_cast<uint64_t>(at));
  return -1;
}

__device__ __forceinline__ void send_route(const Params& params, int64_t at, int32_t expert, float weight) {
  const Problem& p = params.problem;
  if (expert < 0) weight = 0.0f;
  const int64_t place = static_cast<int64_t>(params.self) * p.capacity * p.topk + at;
#pragma unroll 1
  for (int dst = 0; dst < p.ranks; ++dst) {
    reinterpret_cast<int32_t*>(params.peers[dst] + params.symmetric.route_ids)[place] = expert;
    reinterpret_cast<float*>(params.peers[dst] + params.symmetric.route_weights)[place] = weight;
  }
}

// All of them, ahead of the rows: the side warps of as many thread blocks as have enough to do. Whoever is last tells the ranks. blocks: those that have a first task;
// the last of them have no tokens to quantise in a small call. A rank that gave up sends no ids: its peers may still read what they have.
__device__ __forceinline__ void send_ids(const Params& params, uint64_t epoch, int64_t num_tokens, uint32_t blocks, int thread) {
  constexpr uint32_t kRoutesOfBlock = 2048;
  constexpr int kBatch = 4;  // loads of a thread under way
  const uint32_t sender = blocks - 1 - blockIdx.x;  // of a block without a first task: more than all
  const auto routes = static_cast<uint32_t>(num_tokens * params.problem.topk);
  const uint32_t senders = min(routes / kRoutesOfBlock + 1, blocks), step = senders * kSideThreads;
  if (sender >= senders) return;
  const bool drained = await_drained(params, epoch, thread % 32);
#pragma unroll 1
  for (uint32_t first = sender * kSideThreads + thread; drained && first < routes; first += kBatch * step) {
    int64_t id[kBatch];
    float weight[kBatch];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const uint32_t at = min(first + n * step, routes - 1);
      id[n] = own_id(params, at);
      weight[n] = params.topk_weights[at];
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      const uint32_t at = first + n * step;
      if (at < routes) send_route(params, at, expert_of(params, id[n], at), weight[n]);
    }
  }
  __syncwarp();
  if (!ptx::named_barrier_and(kSideBarrier, kSideThreads, drained) || thread != 0) return;
  if (senders > 1) {
    ptx::fence_system();
    if (ptx::fetch_add_relaxed_gpu(&params.state->ids_sent, 1) + 1 != senders) return;
  }
  publish_ids(params, epoch, num_tokens);
}

}  // namespace monomoe::cuda
