// The kernel: the whole layer of one rank in one launch. Set up shared storage, split into roles, leave the counters ready for the next call.
#pragma once

#include "cuda/moe_kernel/roles/claim.cuh"
#include "cuda/moe_kernel/roles/gather.cuh"
#include "cuda/moe_kernel/roles/math.cuh"
#include "cuda/moe_kernel/roles/weights.cuh"

namespace monomoe::cuda {

template <class C>
__device__ __forceinline__ void init_shared_storage(SharedStorage<C>& smem) {
  if (threadIdx.x != 0) return;
  for (int i = 0; i < C::kStages; ++i) {
    ptx::mbarrier_init(ptx::smem_address(&smem.full[i]), 1 + 32 * kGatherWarps);
    ptx::mbarrier_init(ptx::smem_address(&smem.empty[i]), kMathWarps);
  }
  for (int i = 0; i < kQueueSlots; ++i) {
    ptx::mbarrier_init(ptx::smem_address(&smem.queue_full[i]), 1);
    ptx::mbarrier_init(ptx::smem_address(&smem.queue_empty[i]), 1 + kGatherWarps + kMathWarps);
  }
  smem.table_key[0] = smem.table_key[1] = INT32_MIN;
  ptx::fence_mbarrier_init();
}

// The last thread block of the rank to leave makes the counters ready for the next launch: the call's second one, or the next call's.
__device__ __forceinline__ void leave(const Params& params, uint64_t epoch, int64_t num_tokens) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  DeviceState* state = params.state;
  if (ptx::fetch_add_acq_rel_gpu(&state->blocks_left, 1) + 1 != gridDim.x) return;
  state->blocks_left = 0;
  if (params.phase == LaunchPhase::kFirst) {
    state->next_task = second_launch_begin(params, ceil_div(num_tokens, token_chunk(num_tokens)));
    return;
  }
  state->next_task = 0;
  state->dispatch_done = 0;
  state->gemm1_done = 0;
  state->epoch = epoch;
}

template <class C>
__global__ __launch_bounds__(kThreads, 1) void moe_kernel(const __grid_constant__ Params params) {
  SharedStorage<C>& smem = shared_storage<C>();
  init_shared_storage(smem);
  __syncthreads();
  const uint64_t epoch = params.state->epoch + 1;
  const int64_t num_tokens = params.num_tokens_device != nullptr ? *params.num_tokens_device : params.num_tokens;
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<kMoveRegisters>();
    if (threadIdx.x == 0) claim_role(params, smem, epoch, num_tokens);
    else if (threadIdx.x == 32) weights_role(params, smem);
    else if (threadIdx.x >= 64) gather_role(params, smem, static_cast<int>(threadIdx.x) - 64);
  } else {
    ptx::setmaxnreg_inc<kMathRegisters>();
    math_role(params, smem, epoch, num_tokens, warpgroup - 1, static_cast<int>(threadIdx.x % 128));
  }
  leave(params, epoch, num_tokens);
}

}  // namespace monomoe::cuda
