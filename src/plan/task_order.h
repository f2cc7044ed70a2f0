// The order in which a rank's tasks are claimed. It is topological: a task waits only for tasks claimed before it (here or on
// another rank), so one worker per rank is enough for progress and nothing can deadlock.
//
//   dispatch chunks | route lists | GEMM1 tiles | GEMM2 tiles | combine chunks
//
// A GPU sends ids apart from rows, by workers that have a first task and beside it, so that route lists do not wait for dispatch: those of a large call come first.
//
// A GPU that arranges token rows before it multiplies them has tasks for the first blocks' pieces, before the GEMM1 tiles. The others' pieces are claimed
// from a counter of their own, in the order of the blocks, by whoever waits for something else; their memory is a ring of blocks, and a piece may
// wait for GEMM1 of the block that used it. So long as nobody who holds a piece waits without working on it, that is topological too.
//
// The number of GEMM tasks is known once the route lists exist; a claimer of a later ticket waits for them first.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "plan/tiles.h"

namespace monomoe {

enum class TaskKind : uint8_t { kDispatch, kRoutes, kArrange, kGemm1, kGemm2, kCombine, kNone };

struct Task {
  TaskKind kind = TaskKind::kNone;
  int64_t index = 0;  // dispatch, combine: chunk of tokens; routes: part; arrange: a task's share of its block, of a later piece the piece
  int64_t block = 0;  // arrange, GEMMs: token block, over all experts of the rank
  int64_t tile = 0;   // GEMMs: tile of 256 weight rows
};

struct TaskCounts {
  int64_t dispatch_chunks = 0;
  int64_t route_tasks = 1;
  int64_t blocks = 0;        // token blocks of the rank's experts
  int64_t gemm1_tiles = 0;   // per block
  int64_t gemm2_tiles = 0;
  int64_t combine_chunks = 0;
  int64_t arrange_tasks = 0;   // per block that is arranged before the GEMMs
  int64_t arrange_pieces = 0;  // per block that is arranged later
  int64_t arrange_ahead = 0;   // blocks
  bool routes_first = false;   // before dispatch

  MONOMOE_HD constexpr int64_t before_gemms() const { return dispatch_chunks + route_tasks; }
  MONOMOE_HD constexpr int64_t arranged_ahead() const { return min_of(arrange_ahead, blocks) * arrange_tasks; }
  MONOMOE_HD constexpr int64_t arranged_later() const { return (blocks - min_of(arrange_ahead, blocks)) * arrange_pieces; }
  MONOMOE_HD constexpr int64_t before_gemm2() const { return before_gemms() + arranged_ahead() + blocks * gemm1_tiles; }
  MONOMOE_HD constexpr int64_t total() const { return before_gemm2() + blocks * gemm2_tiles + combine_chunks; }
};

MONOMOE_HD constexpr Task task_at(const TaskCounts& counts, int64_t ticket) {
  if (counts.routes_first && ticket < counts.before_gemms()) ticket += ticket < counts.route_tasks ? counts.dispatch_chunks : -counts.route_tasks;
  if (ticket < counts.dispatch_chunks) return {TaskKind::kDispatch, ticket, 0, 0};
  ticket -= counts.dispatch_chunks;
  if (ticket < counts.route_tasks) return {TaskKind::kRoutes, ticket, 0, 0};
  ticket -= counts.route_tasks;
  if (ticket < counts.arranged_ahead()) {
    const int64_t block = divide(ticket, counts.arrange_tasks);
    return {TaskKind::kArrange, ticket - block * counts.arrange_tasks, block, 0};
  }
  ticket -= counts.arranged_ahead();
  if (ticket < counts.blocks * counts.gemm1_tiles) {
    const int64_t block = divide(ticket, counts.gemm1_tiles);
    return {TaskKind::kGemm1, 0, block, ticket - block * counts.gemm1_tiles};
  }
  ticket -= counts.blocks * counts.gemm1_tiles;
  if (ticket < counts.blocks * counts.gemm2_tiles) {
    const int64_t block = divide(ticket, counts.gemm2_tiles);
    return {TaskKind::kGemm2, 0, block, ticket - block * counts.gemm2_tiles};
  }
  ticket -= counts.blocks * counts.gemm2_tiles;
  if (ticket < counts.combine_chunks) return {TaskKind::kCombine, ticket, 0, 0};
  return {};
}

// A piece without a ticket: number [0, arranged_later()).
MONOMOE_HD constexpr Task later_piece(const TaskCounts& counts, int64_t number) {
  const int64_t block = divide(number, counts.arrange_pieces);
  return {TaskKind::kArrange, number - block * counts.arrange_pieces, min_of(counts.arrange_ahead, counts.blocks) + block, 0};
}

// Tokens of one dispatch or combine task.
inline constexpr int64_t kTokenChunk = 16;
// Pieces a contribution row arrives in: one per GEMM2 tile.
MONOMOE_HD constexpr int64_t gemm2_tiles(int64_t hidden) { return ceil_div(hidden, kTileRows); }

}  // namespace monomoe
