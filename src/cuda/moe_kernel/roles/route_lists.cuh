// What both ways to build the route lists share: waiting for the sources' ids, and the experts' places and blocks.
#pragma once

#include "cuda/moe_kernel/roles/arranged_rows.cuh"
#include "cuda/moe_kernel/roles/dispatch.cuh"
#include "cuda/moe_kernel/roles/sources.cuh"

namespace monomoe::cuda {

// Until every source's ids and weights are here. One warp.
__device__ __forceinline__ bool await_ids(const Params& params, uint64_t epoch, int lane) {
  const SymmetricFlags* flags = symmetric_flags(params, params.self);
  bool ok = await_sources(params, flags->ids_arrived, epoch, TaskKind::kRoutes, lane);
#pragma unroll 1
  for (int src = lane; src < params.problem.ranks; src += 32) {
    const uint64_t tag = ptx::load_relaxed_system(&flags->layer[src]);
    if (ok && tag != params.layer_tag) {
      raise_error(params, DeviceErrorCode::kLayerMismatch, TaskKind::kRoutes, WaitFlag::kLayer, static_cast<uint64_t>(src), params.layer_tag, tag, 0);
      ok = false;
    }
  }
  return __all_sync(0xFFFFFFFFu, ok);
}

// How many routes each expert has -> where its list begins, at a multiple of eight; the list of blocks. One warp; returns, in all lanes, the number of
// blocks << 2 | whether one has more than kMiddleTokens << 1 | whether one has its rows arranged.
__device__ __forceinline__ uint32_t place_experts(const Params& params, uint32_t* totals, int lane) {
  auto* expert_begin = reinterpret_cast<int64_t*>(params.workspace + params.local.expert_begin);
  auto* block_begin = reinterpret_cast<int64_t*>(params.workspace + params.local.block_begin);
  auto* infos = reinterpret_cast<BlockInfo*>(params.workspace + params.local.blocks);
  uint32_t most = 0;
#pragma unroll 1
  for (int slot = lane; slot < params.num_slots; slot += 32) most = max(most, totals[slot]);
  most = __reduce_max_sync(0xFFFFFFFFu, most);
  int64_t rows = 0, blocks = 0;
#pragma unroll 1
  for (int base = 0; base < params.num_slots; base += 32) {
    const int slot = base + lane;
    const int64_t count = slot < params.num_slots ? totals[slot] : 0;
    const int64_t own_blocks = ceil_div(count, kGpuTokenBlock), own_rows = round_up(count, kRowGroup);
    int64_t rows_to = own_rows, blocks_to = own_blocks;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
      const int64_t r = __shfl_up_sync(0xFFFFFFFFu, rows_to, step), b = __shfl_up_sync(0xFFFFFFFFu, blocks_to, step);
      if (lane >= step) {
        rows_to += r;
        blocks_to += b;
      }
    }
    if (slot < params.num_slots) {
      const int64_t place = rows + rows_to - own_rows;
      expert_begin[slot] = place;
      totals[slot] = static_cast<uint32_t>(place);
      int64_t block = blocks + blocks_to - own_blocks;
#pragma unroll 1
      for (int64_t done = 0; done < count; done += kGpuTokenBlock, ++block) {
        infos[block] = {place + done, slot, static_cast<int32_t>(min_of(count - done, kGpuTokenBlock))};
        *block_done(params, block) = 0;
        *block_arranged(params, block) = 0;
      }
    }
    rows += __shfl_sync(0xFFFFFFFFu, rows_to, 31);
    blocks += __shfl_sync(0xFFFFFFFFu, blocks_to, 31);
  }
  if (lane == 0) block_begin[params.num_slots] = blocks;
  return static_cast<uint32_t>(blocks) << 2 | (most > kMiddleTokens ? 2u : 0u) | (most > kFewTokens ? 1u : 0u);
}

// One thread, when all routes are placed. listed: of place_experts.
__device__ __forceinline__ void publish_routes(const Params& params, uint32_t listed, uint64_t epoch) {
  if (listed == 0) publish_drained(params, epoch);
  ptx::fence_gpu();
  ptx::store_relaxed_gpu(&params.state->routes_ready, epoch << 32 | listed);
}

}  // namespace monomoe::cuda
