// Dispatch: quantise each row once and push it to every rank that serves it; ids and weights go to all ranks.
#include <algorithm>
#include <cstring>

#include "cpu/executor_worker.hpp"
#include "numerics/tensor_core.h"

namespace monomoe::cpu {
namespace {

// Ids and weights of tokens [begin, end) into this rank's own region: int32, dropped slots -1 with weight 0 (theirs is not read).
void write_own_routes(const RankRun& rank, int64_t begin, int64_t end) {
  const int64_t topk = rank.problem.topk;
  const int64_t base = rank.self() * rank.problem.capacity * topk;
  for (int64_t i = begin * topk; i < end * topk; ++i) {
    const int64_t id = rank.call.wide_ids ? static_cast<const int64_t*>(rank.call.topk_ids)[i]
                                          : static_cast<const int32_t*>(rank.call.topk_ids)[i];
    rank.symmetric.route_ids[base + i] = id < 0 ? -1 : static_cast<int32_t>(id);
    rank.symmetric.route_weights[base + i] = id < 0 ? 0.0f : rank.call.topk_weights[i];
  }
}

void push_routes(const RankRun& rank, int64_t begin, int64_t end) {
  const int64_t topk = rank.problem.topk;
  const int64_t at = (rank.self() * rank.problem.capacity + begin) * topk;
  const size_t bytes = (end - begin) * topk * sizeof(int32_t);
  for (int32_t dst = 0; dst < rank.problem.ranks; ++dst) {
    if (dst == rank.self()) continue;
    const SymmetricView peer = rank.workspace.symmetric_view(dst);
    std::memcpy(peer.route_ids + at, rank.symmetric.route_ids + at, bytes);
    std::memcpy(peer.route_weights + at, rank.symmetric.route_weights + at, bytes);
  }
}

void quantise_own_row(const RankRun& rank, int64_t token) {
  const int64_t hidden = rank.problem.hidden, blocks = rank.problem.hidden_blocks();
  uint8_t* codes = rank.local.own_codes + token * hidden;
  float* scales = rank.local.own_scales + token * blocks;
  if (!rank.call.quantised) {
    rank.kernels.quantise_row(static_cast<const uint16_t*>(rank.call.x) + token * hidden, hidden, codes, scales);
    return;
  }
  const uint8_t* given = static_cast<const uint8_t*>(rank.call.x) + token * hidden;
  for (int64_t i = 0; i < hidden; ++i) codes[i / kBlockK * kBlockK + permuted_k(static_cast<int>(i % kBlockK))] = given[i];
  std::copy_n(rank.call.x_scales + token * blocks, blocks, scales);
}

void push_row(const RankRun& rank, int64_t token, uint64_t serving) {
  const int64_t hidden = rank.problem.hidden, blocks = rank.problem.hidden_blocks();
  for (int32_t dst = 0; dst < rank.problem.ranks; ++dst) {
    if (dst == rank.self() || (serving & rank.comm.bit(dst)) == 0) continue;
    const SymmetricView peer = rank.workspace.symmetric_view(dst);
    const int64_t row = rank.peer_row(rank.self(), dst) + token;
    std::memcpy(peer.row_codes + row * hidden, rank.local.own_codes + token * hidden, hidden);
    std::memcpy(peer.row_scales + row * blocks, rank.local.own_scales + token * blocks, blocks * sizeof(float));
  }
}

}  // namespace

Outcome Worker::await_drained() {
  const uint64_t before = rank.comm.epoch() - 1;
  for (int32_t dst = 0; dst < rank.problem.ranks; ++dst) {
    if (dst == rank.self()) continue;
    const WaitPoint point{TaskKind::kDispatch, FlagName::kDrained, rank.comm.bit(dst)};
    const Outcome outcome = await(rank.symmetric.flags->drained[dst], before, point);
    if (outcome != Outcome::kDone) return outcome;
  }
  return Outcome::kDone;
}

Outcome Worker::dispatch(int64_t chunk) {
  const Outcome outcome = await_drained();
  if (outcome != Outcome::kDone) return outcome;
  const int64_t begin = chunk * kTokenChunk;
  const int64_t end = min_of(begin + kTokenChunk, rank.call.num_tokens);
  write_own_routes(rank, begin, end);
  push_routes(rank, begin, end);
  const int32_t* ids = rank.symmetric.route_ids + rank.self() * rank.problem.capacity * rank.problem.topk;
  for (int64_t token = begin; token < end; ++token) {
    const uint64_t serving = rank.serving_ranks(ids + token * rank.problem.topk);
    if (serving == 0) continue;
    quantise_own_row(rank, token);
    push_row(rank, token, serving);
  }
  const uint64_t done = add<uint64_t>(rank.local.flags->dispatch_done, 1) + 1;
  if (done == static_cast<uint64_t>(rank.counts.dispatch_chunks)) rank.comm.publish_arrived(rank.call.num_tokens, rank.layer());
  return Outcome::kDone;
}

}  // namespace monomoe::cpu
