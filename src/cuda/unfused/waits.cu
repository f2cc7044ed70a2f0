// The three places where a rank waits for the others. One thread block each: see steps.hpp.
#include "cuda/unfused/common.cuh"

namespace monomoe::cuda::unfused {
namespace {

constexpr int kTokenThreads = 512;

// Before anything is written into a peer's memory: it has read what it was sent in the call before.
__global__ __launch_bounds__(kMaxRanks) void await_drained_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  if (threadIdx.x == 0) token_count(call);  // one that cannot be ends the call
  const int dst = static_cast<int>(threadIdx.x);
  if (dst >= call.problem.ranks || dst == call.self) return;
  const uint64_t* flag = &symmetric_flags(call, call.self)->drained[dst];
  await_at_least(
      call, [&] { return ptx::load_acquire_system(flag); }, epoch_of(call) - 1, TaskKind::kDispatch, WaitFlag::kDrained,
      static_cast<uint64_t>(dst), 0);
}

__device__ void publish_arrived(const Params& call, uint64_t epoch) {
  __threadfence_system();
  for (int dst = 0; dst < call.problem.ranks; ++dst) {
    SymmetricFlags* flags = symmetric_flags(call, dst);
    ptx::store_relaxed_system(&flags->num_tokens[call.self], static_cast<uint64_t>(tokens_of(call)));
    ptx::store_relaxed_system(&flags->layer[call.self], call.layer_tag);
    ptx::store_release_system(&flags->arrived[call.self], epoch);
  }
}

// Tells every rank that this one's rows are there, waits for theirs, and sees that all use the same layer.
__global__ __launch_bounds__(kMaxRanks) void await_arrived_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  if (is_over(call)) return;
  const uint64_t epoch = epoch_of(call);
  if (threadIdx.x == 0) publish_arrived(call, epoch);
  const int src = static_cast<int>(threadIdx.x);
  if (src >= call.problem.ranks) return;
  const SymmetricFlags* flags = symmetric_flags(call, call.self);
  const bool here = await_at_least(
      call, [&] { return ptx::load_acquire_system(&flags->arrived[src]); }, epoch, TaskKind::kRoutes, WaitFlag::kArrived,
      static_cast<uint64_t>(src), 0);
  const uint64_t tag = ptx::load_relaxed_system(&flags->layer[src]);
  if (!here || tag == call.layer_tag) return;
  raise_error(call, DeviceErrorCode::kLayerMismatch, TaskKind::kRoutes, WaitFlag::kLayer, static_cast<uint64_t>(src), call.layer_tag, tag,
              0);
}

__device__ uint64_t pieces_of_token(const Params& call, int64_t token) {
  const int32_t* ids = own_ids(call, token);
  uint64_t live = 0;
  for (int slot = 0; slot < call.problem.topk; ++slot) live += ids[slot] >= 0 ? 1 : 0;
  return live * static_cast<uint64_t>(gemm2_tiles(call.problem.hidden));
}

// The last kernel that looks at the epoch, so it also ends it: the call counts as made, whatever became of it.
__global__ __launch_bounds__(kTokenThreads) void await_contributions_kernel(const __grid_constant__ UnfusedParams params) {
  const Params& call = params.call;
  const int64_t num_tokens = is_over(call) ? 0 : tokens_of(call);
  for (int64_t token = threadIdx.x; token < num_tokens; token += kTokenThreads) {
    const uint32_t* arrivals = arrivals_of(call, call.self) + token;
    const bool here = await_at_least(
        call, [&] { return uint64_t{ptx::load_acquire_system(arrivals)}; }, pieces_of_token(call, token), TaskKind::kCombine,
        WaitFlag::kArrivals, static_cast<uint64_t>(call.self), static_cast<uint64_t>(token));
    if (!here) break;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  call.state->epoch = epoch_of(call);
  record_abort(call);
}

Result<void> launch_await_drained(const UnfusedParams& params, int, cudaStream_t stream) {
  await_drained_kernel<<<1, kMaxRanks, 0, stream>>>(params);
  return launched("the wait for drained rows");
}

Result<void> launch_await_arrived(const UnfusedParams& params, int, cudaStream_t stream) {
  await_arrived_kernel<<<1, kMaxRanks, 0, stream>>>(params);
  return launched("the wait for rows");
}

Result<void> launch_await_contributions(const UnfusedParams& params, int, cudaStream_t stream) {
  await_contributions_kernel<<<1, kTokenThreads, 0, stream>>>(params);
  return launched("the wait for contributions");
}

}  // namespace

const Step kAwaitDrained{load<await_drained_kernel>, launch_await_drained};
const Step kAwaitArrived{load<await_arrived_kernel>, launch_await_arrived};
const Step kAwaitContributions{load<await_contributions_kernel>, launch_await_contributions};

}  // namespace monomoe::cuda::unfused
