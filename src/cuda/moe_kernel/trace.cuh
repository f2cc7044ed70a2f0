// Where the time goes: per task of a thread block when it was taken, when its data was there, when its main loop ended and when it was done.
// One thread writes; without a trace it costs a test of a kernel argument.
#pragma once

#include "cuda/moe_kernel/shared_storage.cuh"

namespace monomoe::cuda {

enum class TraceTime : int { kTaken = 0, kDataHere = 1, kMultiplied = 2, kDone = 3 };

template <class C>
__device__ __forceinline__ void trace_time(const Params& params, const SharedStorage<C>& smem, TraceTime which) {
  if (params.trace == nullptr || ptx::thread_index() != 128 || smem.traced >= params.trace_events) return;
  params.trace[blockIdx.x * params.trace_events + smem.traced].time[static_cast<int>(which)] = ptx::globaltimer();
}

// After the task's last time.
template <class C>
__device__ __forceinline__ void trace_task(const Params& params, SharedStorage<C>& smem, const BlockTask& task) {
  if (params.trace == nullptr || ptx::thread_index() != 128) return;
  if (smem.traced < params.trace_events) {
    TraceEvent& event = params.trace[blockIdx.x * params.trace_events + smem.traced];
    event.kind = task.kind;
    event.tile = task.tile;
    event.count = task.count;
    event.block = task.block;
  }
  ++smem.traced;
}

}  // namespace monomoe::cuda
