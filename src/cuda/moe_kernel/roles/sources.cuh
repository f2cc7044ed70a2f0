// Waiting for the sources of this rank's routes, itself among them.
#pragma once

#include "cuda/moe_kernel/waits.cuh"
#include "plan/task_order.h"

namespace monomoe::cuda {

// Whether flags[src] has come to this epoch for every source. One warp; the same in all lanes.
__device__ __forceinline__ bool sources_are_here(const Params& params, const uint64_t* flags, uint64_t epoch, int lane) {
  bool here = true;
#pragma unroll 1
  for (int src = lane; src < params.problem.ranks; src += 32) here &= ptx::load_acquire_system(flags + src) >= epoch;
  here = __all_sync(0xFFFFFFFFu, here);
  __syncwarp();  // what one lane has seen, all have
  return here;
}

// Until it is so; what this rank itself sends has no clock if there are others, so that the record names whom it waits for. False: the rank gave up.
__device__ __forceinline__ bool await_sources(const Params& params, const uint64_t* flags, uint64_t epoch, TaskKind task, int lane) {
  const int without_clock = params.problem.ranks > 1 ? params.self : -1;  // as a wait for another task of this rank (waits.cuh)
  bool ok = true;
#pragma unroll 1
  for (int src = lane; src < params.problem.ranks; src += 32) {
    ok &= await_at_least(
        params, [&] { return ptx::load_acquire_system(flags + src); }, epoch, task, src == without_clock ? WaitFlag::kRoutesReady : WaitFlag::kArrived,
        static_cast<uint64_t>(src), 0);
  }
  ok = __all_sync(0xFFFFFFFFu, ok);
  __syncwarp();
  return ok;
}

}  // namespace monomoe::cuda
