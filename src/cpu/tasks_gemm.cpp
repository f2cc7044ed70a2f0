// GEMM tasks: one token block times one tile of 256 weight rows. GEMM1 leaves the quantised intermediate in the workspace;
// GEMM2 writes its piece of each contribution straight into the memory of the token's rank.
#include <algorithm>

#include "cpu/executor_worker.hpp"

namespace monomoe::cpu {
namespace {

// Pointers to the rows of the block's routes: own rows in the workspace, the others where their source pushed them.
TokenRows gather_rows(const RankRun& rank, const BlockRange& range, WorkerScratch& scratch) {
  const int64_t hidden = rank.problem.hidden, blocks = rank.problem.hidden_blocks();
  for (int64_t i = range.begin; i < range.end; ++i) {
    const Route& route = rank.local.routes[i];
    const bool own = route.src == rank.self();
    const int64_t row = own ? route.token : rank.peer_row(route.src, rank.self()) + route.token;
    scratch.codes[i - range.begin] = (own ? rank.local.own_codes : rank.symmetric.row_codes) + row * hidden;
    scratch.scales[i - range.begin] = (own ? rank.local.own_scales : rank.symmetric.row_scales) + row * blocks;
    scratch.weights[i - range.begin] = route.weight;
  }
  return {scratch.codes, scratch.scales, range.end - range.begin};
}

}  // namespace

BlockRange block_range(const RankRun& rank, int64_t block) {
  const int64_t* first = rank.local.block_begin;
  const int64_t slots = rank.weights.num_slots(rank.self());
  const int64_t slot = std::upper_bound(first, first + slots + 1, block) - first - 1;
  const int64_t begin = rank.local.expert_begin[slot] + (block - first[slot]) * kTokenBlock;
  return {slot, begin, min_of(begin + kTokenBlock, rank.local.expert_begin[slot + 1])};
}

Outcome Worker::gemm1(int64_t block, int64_t tile) {
  const Problem& p = rank.problem;
  const BlockRange range = block_range(rank, block);
  WorkerScratch& s = scratch();
  const TokenRows rows = gather_rows(rank, range, s);
  const WeightTile weights{rank.weights.slot_data(rank.self(), range.slot), &rank.weights.layout(), false, tile};
  rank.kernels.tile_sums(weights, rows, s.sums, kernel_scratch());
  for (int64_t i = 0; i < rows.count; ++i) {
    s.mid_codes[i] = rank.local.mid_codes + (range.begin + i) * p.padded_intermediate() + tile * kBlockK;
    s.mid_scales[i] = rank.local.mid_scales + (range.begin + i) * p.intermediate_blocks() + tile;
  }
  const int64_t channels = min_of(kBlockK, p.intermediate - tile * kBlockK);
  rank.kernels.swiglu_quantise(s.sums, channels, rank.weights.swiglu_limit(), s.weights, rows.count, s.mid_codes, s.mid_scales);
  add<uint32_t>(rank.local.block_done[block], 1);
  const int64_t blocks = rank.local.block_begin[rank.weights.num_slots(rank.self())];
  const uint64_t done = add<uint64_t>(rank.local.flags->gemm1_done, 1) + 1;
  if (done == static_cast<uint64_t>(blocks * rank.counts.gemm1_tiles)) rank.comm.publish_drained();
  return Outcome::kDone;
}

Outcome Worker::gemm2(int64_t block, int64_t tile) {
  const Problem& p = rank.problem;
  const uint32_t tiles = static_cast<uint32_t>(rank.counts.gemm1_tiles);
  const Outcome outcome = await(rank.local.block_done[block], tiles, {TaskKind::kGemm2, FlagName::kBlockDone});
  if (outcome != Outcome::kDone) return outcome;
  const BlockRange range = block_range(rank, block);
  WorkerScratch& s = scratch();
  for (int64_t i = range.begin; i < range.end; ++i) {
    s.codes[i - range.begin] = rank.local.mid_codes + i * p.padded_intermediate();
    s.scales[i - range.begin] = rank.local.mid_scales + i * p.intermediate_blocks();
  }
  const WeightTile weights{rank.weights.slot_data(rank.self(), range.slot), &rank.weights.layout(), true, tile};
  rank.kernels.tile_sums(weights, {s.codes, s.scales, range.end - range.begin}, s.sums, kernel_scratch());
  for (int64_t i = range.begin; i < range.end; ++i) {
    const Route& route = rank.local.routes[i];
    const SymmetricView source = rank.workspace.symmetric_view(route.src);
    uint16_t* row = source.contributions + (route.token * p.topk + route.topk_slot) * p.hidden;
    rank.kernels.round_contribution(s.sums + (i - range.begin) * kTileRows, weights.rows(), row + tile * kTileRows);
    add<uint32_t>(source.arrivals[route.token], 1);
  }
  return Outcome::kDone;
}

}  // namespace monomoe::cpu
