// Combine: the live slots of each token summed in slot order into y. Nothing is written before every contribution of every
// token of the rank is here (the first chunk waits for all of them), so a call that fails leaves y as it was.
#include <bit>

#include "cpu/executor_worker.hpp"

namespace monomoe::cpu {
namespace {

int64_t live_slots(const RankRun& rank, const int32_t* ids) {
  int64_t live = 0;
  for (int64_t slot = 0; slot < rank.problem.topk; ++slot) live += ids[slot] >= 0 ? 1 : 0;
  return live;
}

const int32_t* own_ids(const RankRun& rank, int64_t token) {
  return rank.symmetric.route_ids + (rank.self() * rank.problem.capacity + token) * rank.problem.topk;
}

void combine_token(const RankRun& rank, int64_t token) {
  const Problem& p = rank.problem;
  const int32_t* ids = own_ids(rank, token);
  const uint16_t* contributions[kMaxTopk];
  int64_t count = 0;
  for (int64_t slot = 0; slot < p.topk; ++slot) {
    if (ids[slot] >= 0) contributions[count++] = rank.symmetric.contributions + (token * p.topk + slot) * p.hidden;
  }
  rank.kernels.combine_row(contributions, count, p.hidden, rank.call.y + token * p.hidden);
}

}  // namespace

Outcome Worker::await_contributions() {
  for (int64_t token = 0; token < rank.call.num_tokens; ++token) {
    const int32_t* ids = own_ids(rank, token);
    const uint32_t pieces = static_cast<uint32_t>(live_slots(rank, ids) * rank.counts.gemm2_tiles);
    const uint64_t peers = rank.serving_ranks(ids) & ~rank.comm.bit(rank.self());
    const Outcome outcome =
        await(rank.symmetric.arrivals[token], pieces, {TaskKind::kCombine, FlagName::kArrivals, peers, token});
    if (outcome != Outcome::kDone) return outcome;
  }
  return win(rank.local.flags->outcome, kComplete) ? Outcome::kDone : Outcome::kAborted;
}

Outcome Worker::combine(int64_t chunk) {
  uint64_t& decided = rank.local.flags->outcome;
  const Outcome outcome = chunk == 0 ? await_contributions()
                                     : await<uint64_t>(decided, kComplete, {TaskKind::kCombine, FlagName::kOutcome});
  if (outcome != Outcome::kDone) return outcome;
  if (look(decided) != kComplete) return Outcome::kAborted;
  const int64_t begin = chunk * kTokenChunk;
  const int64_t end = min_of(begin + kTokenChunk, rank.call.num_tokens);
  for (int64_t token = begin; token < end; ++token) {
    combine_token(rank, token);
    // Safe: whoever adds next waits for this rank's next arrival first, and that is published after this call.
    reset(rank.symmetric.arrivals[token]);
  }
  return Outcome::kDone;
}

}  // namespace monomoe::cpu
