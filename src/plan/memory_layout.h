// Every region of a rank's memory, declared once: offsets and totals come from the same walk, so they cannot disagree.
//
// Symmetric memory is written by peers (same offsets on every rank); workspace is the rank's own.
// A token's row is sent once to each rank that serves it (not once per route) and stays in place: row = (source rank, token).
// A rank's own rows stay in its workspace, so symmetric memory holds (ranks - 1) * capacity of them.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "plan/flags.h"
#include "plan/problem.h"
#include "plan/tiles.h"

namespace monomoe {

// Hands out aligned regions one after the other.
struct RegionCursor {
  int64_t bytes = 0;
  MONOMOE_HD constexpr int64_t take(int64_t region_bytes) {
    const int64_t begin = bytes;
    bytes = round_up(bytes + region_bytes, kRegionAlign);
    return begin;
  }
};

struct SymmetricLayout {
  int64_t flags;        // SymmetricFlags
  int64_t arrivals;     // u32 [capacity]: pieces of contributions that have arrived for each of this rank's tokens
  int64_t route_ids;    // i32 [ranks][capacity][topk]: every source's expert ids
  int64_t route_weights;// f32 [ranks][capacity][topk]
  int64_t row_scales;   // f32 [ranks - 1][capacity][hidden / 128]
  int64_t row_codes;    // e4m3 [ranks - 1][capacity][hidden], K permuted inside each 128
  int64_t contributions;// bf16 [capacity][topk][hidden]: what the experts send back for this rank's tokens
  int64_t bytes;
};

MONOMOE_HD constexpr SymmetricLayout symmetric_layout(const Problem& p) {
  SymmetricLayout layout{};
  RegionCursor cursor;
  const int64_t peer_rows = (p.ranks - 1) * p.capacity;
  layout.flags = cursor.take(sizeof(SymmetricFlags));
  layout.arrivals = cursor.take(p.capacity * 4);
  layout.route_ids = cursor.take(p.ranks * p.capacity * p.topk * 4);
  layout.route_weights = cursor.take(p.ranks * p.capacity * p.topk * 4);
  layout.row_scales = cursor.take(peer_rows * p.hidden_blocks() * 4);
  layout.row_codes = cursor.take(peer_rows * p.hidden);
  layout.contributions = cursor.take(p.capacity * p.topk * p.hidden * 2);
  layout.bytes = cursor.bytes;
  return layout;
}

// Index of source rank src's block of rows in the memory of rank self (self's own rows are in its workspace).
MONOMOE_HD constexpr int64_t peer_block(int64_t src, int64_t self) { return src < self ? src : src - 1; }

// One route of an expert's list, in the canonical order (source rank, token, slot of the token).
struct Route {
  int32_t src;     // source rank
  int32_t token;   // row on the source rank
  int32_t topk_slot;
  float weight;    // as given
};

// A token block as a list entry, so that whoever claims a GEMM task on a GPU needs one load.
struct BlockInfo {
  int64_t route_begin;
  int32_t slot;
  int32_t count;
};

struct WorkspaceLayout {
  int64_t flags;        // LocalFlags
  int64_t own_scales;   // f32 [capacity][hidden / 128]
  int64_t own_codes;    // e4m3 [capacity][hidden]
  int64_t expert_begin; // i64 [slots + 1] into routes
  int64_t block_begin;  // i64 [slots + 1] into the token blocks of all experts
  int64_t block_done;   // u32 [max_token_blocks]: GEMM1 tiles finished
  int64_t routes;       // Route [max_routes, see max_route_rows]
  int64_t mid_scales;   // f32 [max_route_rows][intermediate_blocks up to a multiple of 4], route weight already multiplied in
  int64_t mid_codes;    // e4m3 [max_route_rows][padded_intermediate]
  // GPU only (window > 0): the block list, and token rows of the blocks in work arranged as tiles.
  int64_t route_counts;    // u32 [route_rows][slots], while the route lists are built
  int64_t blocks;          // BlockInfo [max_token_blocks]
  int64_t block_arranged;  // u32 [max_token_blocks]: pieces arranged
  int64_t arranged_scales; // f32 [window][hidden_blocks][token_block]
  int64_t arranged_codes;  // e4m3 [window][hidden_blocks][token_block][128], swizzled
  int64_t window;          // token blocks that are arranged at a time
  int64_t bytes;
};

// slots: the largest number of experts a rank holds; token_block: tokens of one GEMM task. An expert has one block at most that is not whole.
MONOMOE_HD constexpr int64_t max_token_blocks(const Problem& p, int64_t slots, int64_t token_block) {
  return p.max_routes() / token_block + slots;
}

// On a GPU every expert's list begins at a multiple of eight rows, so that a block's rows are whole groups of the swizzle.
MONOMOE_HD constexpr int64_t max_route_rows(const Problem& p, int64_t slots) { return p.max_routes() + kRowGroup * slots; }

// Scales of the intermediate come in fours where a GPU copies them.
MONOMOE_HD constexpr int64_t mid_scale_blocks(const Problem& p) { return round_up(p.intermediate_blocks(), 4); }

// window: token blocks that the GPU arranges at a time, route_rows: counters of its routes tasks; 0: for the CPU.
MONOMOE_HD constexpr WorkspaceLayout workspace_layout(const Problem& p, int64_t slots, int64_t token_block, int64_t window = 0,
                                                  int64_t route_rows = 0) {
  WorkspaceLayout layout{};
  RegionCursor cursor;
  layout.flags = cursor.take(sizeof(LocalFlags));
  layout.own_scales = cursor.take(p.capacity * p.hidden_blocks() * 4);
  layout.own_codes = cursor.take(p.capacity * p.hidden);
  layout.expert_begin = cursor.take((slots + 1) * 8);
  layout.block_begin = cursor.take((slots + 1) * 8);
  layout.block_done = cursor.take(max_token_blocks(p, slots, token_block) * 4);
  const int64_t rows = window > 0 ? max_route_rows(p, slots) : p.max_routes(), blocks = window > 0 ? max_token_blocks(p, slots, token_block) : 0;
  layout.routes = cursor.take(rows * static_cast<int64_t>(sizeof(Route)));
  layout.mid_scales = cursor.take(rows * mid_scale_blocks(p) * 4);
  layout.mid_codes = cursor.take(rows * p.padded_intermediate());
  layout.window = min_of(window, blocks);
  layout.route_counts = cursor.take(route_rows * slots * 4);
  layout.blocks = cursor.take(blocks * static_cast<int64_t>(sizeof(BlockInfo)));
  layout.block_arranged = cursor.take(blocks * 4);
  layout.arranged_scales = cursor.take(layout.window * token_block * p.hidden_blocks() * 4);
  layout.arranged_codes = cursor.take(layout.window * token_block * p.hidden);
  layout.bytes = cursor.bytes;
  return layout;
}

}  // namespace monomoe
