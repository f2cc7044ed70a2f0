// What the kernels of the unfused path get, and the memory they need beyond the workspace.
#pragma once

#include <cstdint>

#include "cuda/moe_kernel/params.h"

namespace monomoe::cuda {

// Tokens of one GEMM tile here; independent of the fused kernel's blocks.
inline constexpr int64_t kUnfusedTokenBlock = 128;

struct UnfusedTotals {
  int64_t routes, blocks;  // of the rank in this call
};

// A rank's own memory; allocated only where this path is chosen.
struct UnfusedLayout {
  int64_t totals;  // UnfusedTotals
  int64_t blocks;  // BlockInfo [max blocks of kUnfusedTokenBlock routes]
  int64_t sums;    // f32 [max_routes][max(2 * padded intermediate, hidden)]: GEMM1's, then GEMM2's finished sums
  int64_t bytes;
};

// p: the workspace's or a layer's that fits it; all regions but sums lie the same for both, and sums is the last one.
MONOMOE_HD constexpr UnfusedLayout unfused_layout(const Problem& p, int64_t slots) {
  UnfusedLayout layout{};
  RegionCursor cursor;
  layout.totals = cursor.take(sizeof(UnfusedTotals));
  layout.blocks = cursor.take(max_token_blocks(p, slots, kUnfusedTokenBlock) * static_cast<int64_t>(sizeof(BlockInfo)));
  layout.sums = cursor.take(p.max_routes() * max_of(2 * p.padded_intermediate(), p.hidden) * 4);
  layout.bytes = cursor.bytes;
  return layout;
}

struct UnfusedParams {
  Params call;
  uint8_t* memory;
  UnfusedLayout layout;
};

}  // namespace monomoe::cuda
