// One rank during one call, and one worker of it: what the tasks of all stages share. Inside cpu/ only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/rank_comm.hpp"
#include "cpu/executor_call.hpp"
#include "cpu/executor_weights.hpp"
#include "cpu/executor_workspace.hpp"
#include "plan/task_order.h"

namespace monomoe::cpu {

struct RankRun {
  const CpuWeights& weights;
  const CpuWorkspace& workspace;
  const RankCall& call;
  const Kernels& kernels;
  RankComm comm;
  Problem problem;         // the layer's arithmetic with the workspace's topk, ranks and capacity
  SymmetricView symmetric; // own
  LocalView local;
  TaskCounts counts;       // blocks are not known before the route lists

  int32_t self() const { return comm.self(); }
  // The same number on all ranks that use the same weights.
  uint64_t layer() const { return weights.tag(); }
  // Where source src's rows begin in units of rows; src is a peer.
  int64_t peer_row(int64_t src, int64_t reader) const { return peer_block(src, reader) * problem.capacity; }
  // Bit mask of the ranks that serve a live slot of this token of this rank.
  uint64_t serving_ranks(const int32_t* token_ids) const {
    uint64_t mask = 0;
    for (int64_t slot = 0; slot < problem.topk; ++slot) {
      if (token_ids[slot] >= 0) mask |= comm.bit(weights.serving_copy(self(), token_ids[slot]).rank);
    }
    return mask;
  }
};

// Sums of one tile, pointers to gathered rows, and what the kernels ask for.
struct WorkerScratch {
  float sums[kTokenBlock * kTileRows];
  const uint8_t* codes[kTokenBlock];
  const float* scales[kTokenBlock];
  uint8_t* mid_codes[kTokenBlock];
  float* mid_scales[kTokenBlock];
  float weights[kTokenBlock];
};
static_assert(kTokenBlock <= kMaxTileTokens);
inline constexpr int64_t kKernelScratchBegin = round_up(sizeof(WorkerScratch), 64);

struct Worker {
  RankRun& rank;
  std::byte* memory;
  StageTimes times;
  bool rejected = false;
  bool aborted = false;

  WorkerScratch& scratch() const { return *reinterpret_cast<WorkerScratch*>(memory); }
  void* kernel_scratch() const { return memory + kKernelScratchBegin; }

  template <class T>
  Outcome await(T& word, T wanted, const WaitPoint& point) {
    return rank.comm.await(word, wanted, point, times.wait);
  }

  Outcome dispatch(int64_t chunk);
  Outcome await_drained();    // the rows this rank sent in the call before are read everywhere
  Outcome build_routes();
  Outcome gemm1(int64_t block, int64_t tile);
  Outcome gemm2(int64_t block, int64_t tile);
  Outcome combine(int64_t chunk);
  Outcome await_contributions();
};

// A token block: which expert slot, and which of its routes.
struct BlockRange {
  int64_t slot;
  int64_t begin, end;  // routes
};
BlockRange block_range(const RankRun& rank, int64_t block);

}  // namespace monomoe::cpu
