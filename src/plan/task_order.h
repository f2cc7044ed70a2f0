// The order in which a rank's tasks are claimed. It is topological: a task waits only for tasks claimed before it (here or on
// another rank), so one worker per rank is enough for progress and nothing can deadlock.
//
//   dispatch chunks | route lists | GEMM1 tiles | GEMM2 tiles | combine chunks
//
// The number of GEMM tasks is known once the route lists exist; a claimer of a later ticket waits for them first.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "plan/tiles.h"

namespace monomoe {

enum class TaskKind : uint8_t { kDispatch, kRoutes, kGemm1, kGemm2, kCombine, kNone };

struct Task {
  TaskKind kind = TaskKind::kNone;
  int64_t index = 0;  // dispatch, combine: chunk of tokens
  int64_t block = 0;  // GEMMs: token block, over all experts of the rank
  int64_t tile = 0;   // GEMMs: tile of 256 weight rows
};

struct TaskCounts {
  int64_t token_chunks = 0;  // dispatch and combine tasks
  int64_t blocks = 0;        // token blocks of the rank's experts
  int64_t gemm1_tiles = 0;   // per block
  int64_t gemm2_tiles = 0;

  MONOMOE_HD constexpr int64_t before_gemms() const { return token_chunks + 1; }
  MONOMOE_HD constexpr int64_t before_gemm2() const { return before_gemms() + blocks * gemm1_tiles; }
  MONOMOE_HD constexpr int64_t total() const { return before_gemms() + blocks * (gemm1_tiles + gemm2_tiles) + token_chunks; }
};

MONOMOE_HD constexpr Task task_at(const TaskCounts& counts, int64_t ticket) {
  if (ticket < counts.token_chunks) return {TaskKind::kDispatch, ticket, 0, 0};
  ticket -= counts.token_chunks;
  if (ticket == 0) return {TaskKind::kRoutes, 0, 0, 0};
  ticket -= 1;
  if (ticket < counts.blocks * counts.gemm1_tiles) {
    return {TaskKind::kGemm1, 0, ticket / counts.gemm1_tiles, ticket % counts.gemm1_tiles};
  }
  ticket -= counts.blocks * counts.gemm1_tiles;
  if (ticket < counts.blocks * counts.gemm2_tiles) {
    return {TaskKind::kGemm2, 0, ticket / counts.gemm2_tiles, ticket % counts.gemm2_tiles};
  }
  ticket -= counts.blocks * counts.gemm2_tiles;
  if (ticket < counts.token_chunks) return {TaskKind::kCombine, ticket, 0, 0};
  return {};
}

// Tokens of one dispatch or combine task.
inline constexpr int64_t kTokenChunk = 16;
// Pieces a contribution row arrives in: one per GEMM2 tile.
MONOMOE_HD constexpr int64_t gemm2_tiles(int64_t hidden) { return ceil_div(hidden, kTileRows); }

}  // namespace monomoe
