// The rings as a math warp sees them, and what both main loops share.
#pragma once

#include "cuda/moe_kernel/roles/arranged_rows.cuh"
#include "cuda/moe_kernel/trace.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "numerics/fp32.h"
#include "plan/ring.h"

namespace monomoe::cuda {

__device__ __forceinline__ void math_barrier() { ptx::named_barrier_sync(kMathBarrier, kMathThreads); }

// Places in the rings, and what is still to be given back. A slot or stage is given back only after the next WGMMA has been issued, or when the sums are
// stored: by then every shared load of the old data has been consumed. Arriving straight after the wait let loads be overtaken.
template <class C>
struct MathRings {
  RingCursor<C::kWeightSlots> weights = RingCursor<C::kWeightSlots>::consumer();
  RingCursor<C::kTokenStages> tokens = RingCursor<C::kTokenStages>::consumer();
  RingCursor<C::kExpandedSlots> expanded = RingCursor<C::kExpandedSlots>::consumer();
  RingCount<C::kResultSlots> results = RingCount<C::kResultSlots>::producer();
  uint32_t held_weights = 0, held_tokens = 0;  // addresses of barriers to arrive on, 0: none
  // The loop of the last GEMM task, or kFew where there was none. FP8's middle tokens have kMany's.
  enum class Last { kFew, kMiddle, kMany } last = Last::kFew;

  // Without a branch: it stands in the main loops. kArrivals: on held_weights.
  template <int kArrivals = 1>
  __device__ __forceinline__ void release(int lane) {
    __syncwarp();
    release_converged<kArrivals>(lane);
  }
  // Straight after WGMMAs were issued, which a warp does as one.
  template <int kArrivals = 1>
  __device__ __forceinline__ void release_converged(int lane) {
    ptx::mbarrier_arrive_if(held_weights, kArrivals, lane == 0 && held_weights != 0);
    ptx::mbarrier_arrive_if(held_tokens, 1, lane == 0 && held_tokens != 0);
    held_weights = held_tokens = 0;
  }
};

// gathered: row by row, by plain asynchronous copies, which are generic-proxy writes: their arrival and the fence put them before the WGMMAs that
// follow. Tiles come by bulk copies and need no fence.
template <class C>
__device__ __forceinline__ void wait_tokens(SharedStorage<C>& smem, const MathRings<C>& rings, bool gathered) {
  wait_barrier(smem.tokens_full_at(rings.tokens.slot), rings.tokens.phase);
  if (gathered) ptx::fence_proxy_async_smem();
}

template <int kCount>
__device__ __forceinline__ void pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Block scales of FP8 for gate and up rows, from one K block to the next; for down both are those of a half.
struct BlockScales {
  const float* gate = nullptr;
  uint32_t up = 0;  // floats from gate's; a pointer would cost a register more

  __device__ __forceinline__ void load(float (&scale)[2]) const {
    scale[0] = __ldg(gate);
    scale[1] = __ldg(gate + up);
  }
};

__device__ __forceinline__ BlockScales block_scales(const Params& params, const BlockTask& task, int half) {
  if (is_down(task)) {
    const int64_t row = min_of(2 * task.tile + half, params.experts.down_halves - 1);
    return {reinterpret_cast<const float*>(task.expert + params.experts.down_scales_begin) + row * params.experts.down_k_blocks, 0};
  }
  return {reinterpret_cast<const float*>(task.expert + params.experts.gate_scales_begin) + task.tile * params.experts.gate_up_k_blocks,
          static_cast<uint32_t>((params.experts.up_scales_begin - params.experts.gate_scales_begin) / sizeof(float))};
}

}  // namespace monomoe::cuda
