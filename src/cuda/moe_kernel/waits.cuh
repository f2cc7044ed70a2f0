// The only ways to wait on flags in global memory: bounded by a timeout and by the abort record of the rank. A wait that fails leaves one record
// and tells every rank; kernels then leave by themselves.
#pragma once

#include <cstdint>

#include "cuda/moe_kernel/params.h"
#include "cuda/ptx/memory.cuh"
#include "cuda/ptx/sync.cuh"

namespace monomoe::cuda {

__device__ __forceinline__ SymmetricFlags* symmetric_flags(const Params& params, int rank) {
  return reinterpret_cast<SymmetricFlags*>(params.peers[rank] + params.symmetric.flags);
}
__device__ __forceinline__ bool aborted(const Params& params) {
  return ptx::load_relaxed_system(symmetric_flags(params, params.self)->abort_record) != 0;
}

// First record wins, here and on every rank.
__device__ inline void raise_error(const Params& params, DeviceErrorCode code, TaskKind task, WaitFlag flag, uint64_t peer, uint64_t expected,
                                   uint64_t seen, uint64_t item) {
  const uint64_t word = static_cast<uint64_t>(code) << 32 | static_cast<uint64_t>(params.self) << 16 | peer << 8 | 1;
#pragma unroll 1
  for (int rank = 0; rank < params.problem.ranks; ++rank) ptx::compare_swap_system(symmetric_flags(params, rank)->abort_record, 0, word);
  DeviceError* error = params.error;
  if (atomicCAS_system(reinterpret_cast<unsigned long long*>(&error->code), 0ull, static_cast<unsigned long long>(code)) != 0) return;
  error->rank = params.self;
  error->task = static_cast<uint64_t>(task);
  error->flag = static_cast<uint64_t>(flag);
  error->peer = peer;
  error->expected = expected;
  error->seen = seen;
  error->item = item;
  __threadfence_system();
}

// If another rank gave up, this rank's host learns it here: the record with the cause may be in a process elsewhere.
__device__ __noinline__ inline void record_abort(const Params& params) {
  const uint64_t word = ptx::load_relaxed_system(symmetric_flags(params, params.self)->abort_record);
  if (word == 0) return;
  DeviceError* error = params.error;
  const auto code = static_cast<unsigned long long>(DeviceErrorCode::kPeerAborted);
  if (atomicCAS_system(reinterpret_cast<unsigned long long*>(&error->code), 0ull, code) != 0) return;
  error->rank = word >> 16 & 0xFFFF;
  error->peer = word >> 8 & 0xFF;
  error->item = word >> 32;  // the other's DeviceErrorCode
  __threadfence_system();
}

// Not inlined: the kernel has no registers for what does not happen.
__device__ __noinline__ inline void refuse_count(const Params& params, int64_t count) {
  raise_error(params, DeviceErrorCode::kTooManyTokens, TaskKind::kNone, WaitFlag::kArrived, static_cast<uint64_t>(params.self),
              static_cast<uint64_t>(params.num_tokens), static_cast<uint64_t>(count), 0);
}

// The number of tokens of this call. One that cannot be ends the call for all ranks; this one then goes on without tokens.
__device__ __forceinline__ int64_t token_count(const Params& params) {
  if (params.num_tokens_device == nullptr) return params.num_tokens;
  const int64_t count = *params.num_tokens_device;
  if (count >= 0 && count <= params.num_tokens) return count;
  refuse_count(params, count);
  return 0;
}

// Waits until load() >= wanted. False: aborted or timed out.
template <class Load>
__device__ __forceinline__ bool await_at_least(const Params& params, Load load, uint64_t wanted, TaskKind task, WaitFlag flag, uint64_t peer,
                                               uint64_t item) {
  if (load() >= wanted) return true;
  // A wait for another task of this rank has no clock: that task works, or waits under its own, and the record names the cause.
  const bool has_clock = flag != WaitFlag::kRoutesReady && flag != WaitFlag::kBlockDone;
  const uint64_t begin = ptx::globaltimer();
  for (uint32_t spin = 0;; ++spin) {
    const uint64_t seen = load();
    if (seen >= wanted) return true;
    if (spin % 64 == 63) {
      if (aborted(params)) return false;
      if (has_clock && ptx::globaltimer() - begin > params.timeout_ns) {
        raise_error(params, DeviceErrorCode::kTimeout, task, flag, peer, wanted, seen, item);
        return false;
      }
    }
  }
}

}  // namespace monomoe::cuda
