// A call as two launches of the kernel on one stream: the first ends before GEMM2, the second begins there. Between them the counters stay
// as they are; only the claim counter, which ran ahead, is set to the first task of the second launch.
#pragma once

#include "cuda/moe_kernel/waits.cuh"
#include "plan/task_order.h"

namespace monomoe::cuda {

// A second launch after a first one that gave up has nothing to do: the record is written, and the lists may be half built.
__device__ __forceinline__ bool is_of_this_launch(const Params& params, TaskKind kind) {
  if (params.phase == LaunchPhase::kFirst) return kind < TaskKind::kGemm2;
  return params.phase == LaunchPhase::kWhole || !aborted(params);
}

}  // namespace monomoe::cuda
