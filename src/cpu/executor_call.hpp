// What a rank brings to one call, and what it learns: arguments, options, time by stage.
#pragma once

#include <cstdint>
#include <functional>

#include "cpu/kernels.hpp"
#include "plan/task_order.h"

namespace monomoe::cpu {

// One rank's tokens. Pointers may be null where num_tokens is 0. x is [num_tokens, hidden]; ids and weights are [num_tokens, topk].
struct RankCall {
  int64_t num_tokens = 0;
  const void* x = nullptr;          // bf16, or e4m3 if quantised
  bool quantised = false;           // x is e4m3 in channel order, x_scales fp32 [num_tokens, hidden / 128]
  const float* x_scales = nullptr;
  const void* topk_ids = nullptr;   // int32, or int64 if wide_ids; negative: the slot is dropped
  bool wide_ids = false;
  const float* topk_weights = nullptr;
  uint16_t* y = nullptr;            // bf16 [num_tokens, hidden]; written on success only
  const int64_t* num_tokens_device = nullptr;  // not this backend's: the number of tokens in GPU memory, at most num_tokens

  // For tests: called by a worker with kNone when the rank's call begins and with the task's kind before each task.
  std::function<void(TaskKind)> hook;
};

struct RunOptions {
  const Kernels* kernels = nullptr;  // required
  int32_t threads = 1;               // run_rank: workers of the rank; run_all: of all ranks together, at least one each
  uint32_t timeout_ms = 30000;       // a wait for another rank ends when nobody has shown progress for so long
};

// Seconds of thread time, summed over workers; waits are not part of the stages. wall is the call's, of all ranks the longest.
struct StageTimes {
  double wall = 0, dispatch = 0, routes = 0, gemm1 = 0, gemm2 = 0, combine = 0, wait = 0;

  void add(const StageTimes& other) {
    wall = wall > other.wall ? wall : other.wall;
    dispatch += other.dispatch;
    routes += other.routes;
    gemm1 += other.gemm1;
    gemm2 += other.gemm2;
    combine += other.combine;
    wait += other.wait;
  }
};

}  // namespace monomoe::cpu
