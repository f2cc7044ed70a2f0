// The kernel: the whole layer of one rank in one launch. Set up shared storage, split into roles, leave the counters ready for the next call.
#pragma once

#include "cuda/moe_kernel/roles/claim.cuh"
#include "cuda/moe_kernel/roles/gather.cuh"
#include "cuda/moe_kernel/roles/math.cuh"
#include "cuda/moe_kernel/roles/publish.cuh"
#include "cuda/moe_kernel/roles/side.cuh"
#include "cuda/moe_kernel/roles/weights.cuh"

namespace monomoe::cuda {

// A thread each for groups of barriers, and for what comes from memory; a barrier below counts on all.
template <class C>
__device__ __forceinline__ void init_shared_storage(const Params& params, SharedStorage<C>& smem) {
  const int i = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kQueueSlots; ++slot) {
      ptx::mbarrier_init(smem.queue_full_at(slot), 1);
      ptx::mbarrier_init(smem.queue_empty_at(slot), 3 + kMathWarps + kSideWarps);  // weights, gather, publish
      ptx::mbarrier_init(smem.written_at(slot), kMathWarps);
    }
    smem.num_tokens = token_count(params);
    give_first_task(params, smem);
  } else if (threadIdx.x == 32) {
    smem.traced = 0;
    smem.rows_missing = false;
    smem.table_key[0] = smem.table_key[1] = INT32_MIN;
    smem.epoch = params.state->epoch + 1;
  } else if (threadIdx.x >= 64 && threadIdx.x < 96) {
    if (i < C::kWeightSlots) {
      ptx::mbarrier_init(smem.weights_full_at(i), 1);
      // All math warps, or four that arrive twice: those of one warpgroup, or the side warps.
      ptx::mbarrier_init(smem.weights_empty_at(i), kMathWarps);
    }
  } else if (threadIdx.x >= 96 && threadIdx.x < 128) {
    if (i < C::kTokenStages) {
      ptx::mbarrier_init(smem.tokens_full_at(i), 32);
      ptx::mbarrier_init(smem.tokens_empty_at(i), kMathWarps);
    }
    if (i < C::kExpandedSlots) {
      ptx::mbarrier_init(smem.expanded_full_at(i), kSideWarps);
      ptx::mbarrier_init(smem.expanded_empty_at(i), kMathWarps);
    }
    if (i < C::kResultSlots) {
      ptx::mbarrier_init(smem.results_full_at(i), kMathWarps);
      ptx::mbarrier_init(smem.results_empty_at(i), kSideWarps);
    }
  }
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
    TaskCounts counts = counts_before_routes(params, num_tokens);
    add_blocks(params, counts, __ldcg(reinterpret_cast<const unsigned long long*>(&state->routes_ready)));
    state->next_task = static_cast<uint64_t>(counts.before_gemm2());  // a second launch gives no tickets away
    return;
  }
  state->next_task = 0;
  state->ids_sent = 0;
  state->dispatch_done = 0;
  state->counted = state->placed = 0;
  state->gemm1_done = 0;
  state->next_piece = 0;
  state->epoch = epoch;
  record_abort(params);
}

template <class C>
__global__ __launch_bounds__(kThreads, 1) void moe_kernel(const __grid_constant__ Params params) {
  SharedStorage<C>& smem = shared_storage<C>();
  if (ptx::smem_address(shared_bytes()) != kSharedBase) {
    raise_error(params, DeviceErrorCode::kSharedBase, TaskKind::kNone, WaitFlag::kArrived, static_cast<uint64_t>(params.self), kSharedBase, 0, 0);
    return;
  }
  init_shared_storage(params, smem);
  __syncthreads();
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 128), 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<C::kMoveRegisters>();
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0), lane = static_cast<int>(threadIdx.x % 32);
    if (warp == kGatherWarp) gather_role(params, smem, lane);
    else if (warp == kPublishWarp) publish_role(params, smem, lane);
    else if (warp == kClaimWarp) claim_role(params, smem, lane);
    else if (warp == kWeightsWarp && lane == 0) weights_role(params, smem);
  } else if (warpgroup > kMathWarpgroups) {
    ptx::setmaxnreg_dec<C::kSideRegisters>();
    side_role(params, smem);
  } else {
    ptx::setmaxnreg_inc<C::kMathRegisters>();
    math_role(params, smem, warpgroup - 1);
  }
  leave(params, smem.epoch, smem.num_tokens);
}

}  // namespace monomoe::cuda
