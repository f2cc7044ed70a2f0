// What one launch of the kernel gets: numbers and pointers, by value. Filled by cuda/launch.
#pragma once

#include <cstdint>

#include "plan/flags.h"
#include "plan/memory_layout.h"
#include "plan/placement.h"
#include "plan/problem.h"
#include "plan/task_order.h"
#include "plan/weight_packing.h"

namespace monomoe::cuda {

// Tokens of one GEMM task.
inline constexpr int64_t kGpuTokenBlock = 256;

// Blocks whose token rows are arranged ahead of GEMM1: more than are in work at a time, few enough to stay in the L2.
inline constexpr int64_t kArrangeWindow = 32;
// Of these, blocks that are arranged before the first GEMM.
inline constexpr int64_t kArrangedFirst = 12;
// Tasks among which the routes of a large call are shared out, twice: to count and to place.
inline constexpr int kRouteTasks = 32;
// The workspace as this backend lays it out.
inline WorkspaceLayout gpu_workspace_layout(const Problem& p, int64_t slots) { return workspace_layout(p, slots, kGpuTokenBlock, kArrangeWindow, kRouteTasks * 8); }

// SwiGLU of 64 channels in fp32: of 256 tokens, which the math warps keep, and of 128, which the side warps keep.
inline constexpr int64_t kManyScratchBytes = kGpuTokenBlock * 64 * 4;
inline constexpr int64_t kMiddleScratchBytes = kGpuTokenBlock / 2 * 64 * 4;
inline constexpr int64_t kScratchBytes = kManyScratchBytes + kMiddleScratchBytes;  // of a thread block

// Counters of one rank that outlive a launch: the last block to leave prepares the next one, so no host work lies between.
struct DeviceState {
  uint64_t epoch;       // calls finished
  uint64_t next_task;
  uint64_t ids_sent;    // thread blocks that have sent their part of them
  uint64_t dispatch_done;
  uint64_t counted, placed;  // routes tasks that have counted, placed
  uint64_t routes_planned;   // epoch << 8 | number of routes tasks that have work
  uint64_t routes_counted;   // epoch
  uint64_t routes_ready;     // low half of the epoch << 32 | blocks << 2 | whether a block has more than kMiddleTokens << 1 | whether one has its rows arranged
  uint64_t listed;           // the low half of that word, until the routes are placed
  uint64_t gemm1_done;
  uint64_t next_piece;    // of the rows that are arranged while GEMMs run
  uint64_t blocks_left;   // thread blocks that have ended this call
};

// What went wrong first, in host-mapped memory of the rank. code 0: nothing.
struct DeviceError {
  uint64_t code, rank, task, flag, peer, expected, seen, item;
};
enum class DeviceErrorCode : uint64_t { kNone = 0, kTimeout = 1, kBadExpertId = 2, kPeerAborted = 3, kLayerMismatch = 4, kTooManyTokens = 5, kSharedBase = 6 };
// kArrived: of ids or of rows.
enum class WaitFlag : uint64_t { kDrained = 1, kArrived = 2, kRoutesReady = 3, kBlockDone = 4, kArrivals = 5, kLayer = 6 };

// One task of one thread block; times in ns of the GPU's global timer, 0: the task has no such moment.
struct TraceEvent {
  uint64_t time[4];  // taken, data here, multiplied, done or handed over (cuda/moe_kernel/trace.cuh)
  int32_t kind;      // TaskKind; the memory must be zero before the launch: an event of kind 0 without times is none
  int32_t tile, count;
  int64_t block;
};

// The part of a call that a launch does: all of it, or what lies before GEMM2, or the rest.
enum class LaunchPhase : int32_t { kWhole, kFirst, kSecond };

struct Params {
  Problem problem;          // the layer's, with the workspace's topk, ranks, capacity
  ExpertLayout experts;
  SymmetricLayout symmetric;
  WorkspaceLayout local;
  int32_t self;
  int32_t num_slots;
  uint8_t* peers[kMaxRanks];  // symmetric memory of every rank; peers[self] is its own
  uint8_t* workspace;
  float* scratch;           // what a thread block keeps between the two halves of a tile: [thread blocks][kManyScratchBytes], then [thread blocks][kMiddleScratchBytes]
  DeviceState* state;
  DeviceError* error;
  const uint8_t* packed_experts;    // [num_slots][experts.bytes]
  const int32_t* serving;           // [ranks][experts] rank << 16 | slot
  float swiglu_limit;
  uint64_t layer_tag;               // the same on all ranks that use the same layer
  uint64_t timeout_ns;
  TraceEvent* trace;                // null, or [thread blocks][trace_events]
  int32_t trace_events;

  // The call.
  LaunchPhase phase;
  const int64_t* num_tokens_device;  // if not null the number of tokens is read here, and num_tokens is the most it may be
  int64_t num_tokens;
  const void* x;                     // bf16 [tokens, hidden], or e4m3 with x_scales
  const float* x_scales;
  const void* topk_ids;
  bool wide_ids;
  const float* topk_weights;
  uint16_t* y;
};

}  // namespace monomoe::cuda
