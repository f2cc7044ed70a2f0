// The order in which a rank's tasks are claimed. It is topological: a task waits only for tasks claimed before it (here or on
// another rank), so one worker per rank is enough for progress and nothing can deadlock.
//
//   dispatch chunks | route lists | GEMM1 tiles | GEMM2 tiles | combine chunks
//
// A GPU that arranges token rows before it multiplies them does so some blocks ahead: the first blocks' pieces come before the GEMM1 tiles, and
// behind the tiles of block b come the pieces of block b + ahead. Their memory is a ring of twice as many blocks, so that what a piece waits for
// (the block that used its memory) was claimed long ago.
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
  int64_t index = 0;  // dispatch, combine: chunk of tokens; routes: part; arrange: piece
  int64_t block = 0;  // arrange, GEMMs: token block, over all experts of the rank; an arrange task may name one past the last
  int64_t tile = 0;   // GEMMs: tile of 256 weight rows
};

struct TaskCounts {
  int64_t dispatch_chunks = 0;
  int64_t route_tasks = 1;
  int64_t blocks = 0;        // token blocks of the rank's experts
  int64_t gemm1_tiles = 0;   // per block
  int64_t gemm2_tiles = 0;
  int64_t combine_chunks = 0;
  int64_t arrange_pieces = 0;  // per block
  int64_t arrange_ahead = 0;   // blocks

  MONOMOE_HD constexpr int64_t before_gemms() const { return dispatch_chunks + route_tasks; }
  MONOMOE_HD constexpr int64_t arranged_ahead() const { return min_of(arrange_ahead, blocks) * arrange_pieces; }
  MONOMOE_HD constexpr int64_t before_gemm2() const { return before_gemms() + arranged_ahead() + blocks * (gemm1_tiles + arrange_pieces); }
  MONOMOE_HD constexpr int64_t total() const { return before_gemm2() + blocks * gemm2_tiles + combine_chunks; }
};

MONOMOE_HD constexpr Task task_at(const TaskCounts& counts, int64_t ticket) {
  if (ticket < counts.dispatch_chunks) return {TaskKind::kDispatch, ticket, 0, 0};
  ticket -= counts.dispatch_chunks;
  if (ticket < counts.route_tasks) return {TaskKind::kRoutes, ticket, 0, 0};
  ticket -= counts.route_tasks;
  if (ticket < counts.arranged_ahead()) {
    const int64_t block = divide(ticket, counts.arrange_pieces);
    return {TaskKind::kArrange, ticket - block * counts.arrange_pieces, block, 0};
  }
  ticket -= counts.arranged_ahead();
  const int64_t per_block = counts.gemm1_tiles + counts.arrange_pieces;
  if (ticket < counts.blocks * per_block) {
    const int64_t block = divide(ticket, per_block), at = ticket - block * per_block;
    if (at < counts.gemm1_tiles) return {TaskKind::kGemm1, 0, block, at};
    return {TaskKind::kArrange, at - counts.gemm1_tiles, block + counts.arrange_ahead, 0};
  }
  ticket -= counts.blocks * per_block;
  if (ticket < counts.blocks * counts.gemm2_tiles) {
    const int64_t block = divide(ticket, counts.gemm2_tiles);
    return {TaskKind::kGemm2, 0, block, ticket - block * counts.gemm2_tiles};
  }
  ticket -= counts.blocks * counts.gemm2_tiles;
  if (ticket < counts.combine_chunks) return {TaskKind::kCombine, ticket, 0, 0};
  return {};
}

// Tokens of one dispatch or combine task.
inline constexpr int64_t kTokenChunk = 16;
// Pieces a contribution row arrives in: one per GEMM2 tile.
MONOMOE_HD constexpr int64_t gemm2_tiles(int64_t hidden) { return ceil_div(hidden, kTileRows); }

}  // namespace monomoe
