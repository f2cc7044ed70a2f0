// Route lists: a thread block for each expert of the rank. It counts the routes of all experts, so it knows where its own list begins, and
// goes over them again to write its own in the canonical order (source rank, token, slot).
#include "cuda/unfused/common.cuh"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kListThreads = 512, kListWarps = kListThreads / 32;
constexpr int kMaxSlots = 1024;  // experts of one rank; layer_weights.cpp refuses more

__device__ int64_t routes_from(const Params& call, int src) {
  return static_cast<int64_t>(ptx::load_relaxed_system(&symmetric_flags(call, call.self)->num_tokens[src])) * call.problem.topk;
}

// The slot of this rank that serves route number `number` of source src; -1: none.
__device__ int slot_of(const Params& call, int src, int64_t number) {
  const auto* ids = reinterpret_cast<const int32_t*>(call.peers[call.self] + call.symmetric.route_ids);
  const int32_t id = ids[src * call.problem.capacity * call.problem.topk + number];
  if (id < 0) return -1;
  const int32_t copy = call.serving[src * call.problem.experts + id];
  return (copy >> 16) == call.self ? copy & 0xFFFF : -1;
}

__device__ void count_all(const Params& call, int* counts) {
  for (int slot = static_cast<int>(threadIdx.x); slot < call.num_slots; slot += kListThreads) counts[slot] = 0;
  __syncthreads();
  for (int src = 0; src < call.problem.ranks; ++src) {
    const int64_t count = routes_from(call, src);
    for (int64_t number = threadIdx.x; number < count; number += kListThreads) {
      const int slot = slot_of(call, src, number);
      if (slot >= 0) atomicAdd(&counts[slot], 1);
    }
  }
  __syncthreads();
}

__device__ Route make_route(const Params& call, int src, int64_t number) {
  const auto* weights = reinterpret_cast<const float*>(call.peers[call.self] + call.symmetric.route_weights);
  return {src, static_cast<int32_t>(number / call.problem.topk), static_cast<int32_t>(number % call.problem.topk),
          weights[src * call.problem.capacity * call.problem.topk + number]};
}

// The routes of `own` from place `begin` on.
__device__ void write_list(const Params& call, int own, int64_t begin) {
  __shared__ int of_warp[kListWarps];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  auto* routes = reinterpret_cast<Route*>(call.workspace + call.local.routes);
  for (int src = 0; src < call.problem.ranks; ++src) {
    const int64_t count = routes_from(call, src);
    for (int64_t base = 0; base < count; base += kListThreads) {
      const int64_t number = base + threadIdx.x;
      const bool mine = number < count && slot_of(call, src, number) == own;
      const uint32_t lanes = __ballot_sync(0xFFFFFFFFu, mine);
      if (lane == 0) of_warp[warp] = __popc(lanes);
      __syncthreads();
      int64_t place = begin + __popc(lanes & ((1u << lane) - 1));
      for (int w = 0; w < kListWarps; ++w) {
        if (w < warp) place += of_warp[w];
        begin += of_warp[w];
      }
      if (mine) routes[place] = make_route(call, src, number);
      __syncthreads();
    }
  }
}

__global__ __launch_bounds__(kListThreads) void list_kernel(const __grid_constant__ UnfusedParams params) {
  __shared__ int counts[kMaxSlots];
  const Params& call = params.call;
  if (is_over(call)) return;
  const int own = static_cast<int>(blockIdx.x);
  count_all(call, counts);
  int64_t route_begin = 0, block_begin = 0;
  UnfusedTotals totals{};
  for (int slot = 0; slot < call.num_slots; ++slot) {
    if (slot == own) {
      route_begin = totals.routes;
      block_begin = totals.blocks;
    }
    totals.routes += counts[slot];
    totals.blocks += ceil_div(counts[slot], kUnfusedTokenBlock);
  }
  if (own == 0 && threadIdx.x == 0) *reinterpret_cast<UnfusedTotals*>(params.memory + params.layout.totals) = totals;
  if (own >= call.num_slots) return;  // a rank without experts
  auto* blocks = reinterpret_cast<BlockInfo*>(params.memory + params.layout.blocks) + block_begin;
  for (int64_t i = threadIdx.x; i * kUnfusedTokenBlock < counts[own]; i += kListThreads) {
    const int64_t done = i * kUnfusedTokenBlock;
    blocks[i] = {route_begin + done, own, static_cast<int32_t>(min_of(counts[own] - done, kUnfusedTokenBlock))};
  }
  write_list(call, own, route_begin);
}

Result<void> launch_list_routes(const UnfusedParams& params, int, cudaStream_t stream) {
  list_kernel<<<static_cast<unsigned>(max_of(params.call.num_slots, 1)), kListThreads, 0, stream>>>(params);
  return launched("the route lists");
}

}  // namespace

const Step kListRoutes{load<list_kernel>, launch_list_routes};

}  // namespace monomoe::cuda::unfused
