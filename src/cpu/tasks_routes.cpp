// The route lists: for each expert of the rank its routes in the canonical order (source rank, token, slot), built by counting.
// The order does not depend on who arrived first, so neither do the blocks nor the bits.
#include "cpu/executor_worker.hpp"

namespace monomoe::cpu {
namespace {

// Calls visit(slot, route) for every route this rank serves, in canonical order.
template <class Visit>
void for_each_route(const RankRun& rank, Visit visit) {
  const int64_t topk = rank.problem.topk;
  for (int32_t src = 0; src < rank.problem.ranks; ++src) {
    const int64_t base = src * rank.problem.capacity * topk;
    const int64_t tokens = static_cast<int64_t>(look(rank.symmetric.flags->num_tokens[src]));
    for (int64_t i = 0; i < tokens * topk; ++i) {
      const int32_t id = rank.symmetric.route_ids[base + i];
      if (id < 0) continue;
      const ExpertCopy& copy = rank.weights.serving_copy(src, id);
      if (copy.rank != rank.self()) continue;
      visit(copy.slot, Route{src, static_cast<int32_t>(i / topk), static_cast<int32_t>(i % topk), rank.symmetric.route_weights[base + i]});
    }
  }
}

void build_lists(const RankRun& rank) {
  const int64_t slots = rank.weights.num_slots(rank.self());
  int64_t* begin = rank.local.expert_begin;
  int64_t* cursor = rank.local.block_begin;  // until the blocks are counted
  for (int64_t slot = 0; slot <= slots; ++slot) begin[slot] = 0;
  for_each_route(rank, [&](int32_t slot, const Route&) { ++begin[slot + 1]; });
  for (int64_t slot = 0; slot < slots; ++slot) {
    begin[slot + 1] += begin[slot];
    cursor[slot] = begin[slot];
  }
  for_each_route(rank, [&](int32_t slot, const Route& route) { rank.local.routes[cursor[slot]++] = route; });
  int64_t* block_begin = rank.local.block_begin;
  block_begin[0] = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    block_begin[slot + 1] = block_begin[slot] + ceil_div(begin[slot + 1] - begin[slot], kTokenBlock);
  }
  for (int64_t block = 0; block < block_begin[slots]; ++block) reset(rank.local.block_done[block]);
}

}  // namespace

Outcome Worker::build_routes() {
  if (rank.counts.dispatch_chunks == 0) {
    const Outcome outcome = await_drained();
    if (outcome != Outcome::kDone) return outcome;
    rank.comm.publish_arrived(0, rank.layer());
  }
  for (int32_t src = 0; src < rank.problem.ranks; ++src) {
    const WaitPoint point{TaskKind::kRoutes, FlagName::kArrived, src == rank.self() ? 0 : rank.comm.bit(src)};
    const Outcome outcome = await(rank.symmetric.flags->arrived[src], rank.comm.epoch(), point);
    if (outcome != Outcome::kDone) return outcome;
  }
  for (int32_t src = 0; src < rank.problem.ranks; ++src) {
    const uint64_t layer = look(rank.symmetric.flags->layer[src]);
    if (layer != rank.layer()) {
      return rank.comm.abort({Status::kUsage, rank.self(), TaskKind::kRoutes, FlagName::kLayer, src, -1, rank.layer(), layer, 0});
    }
  }
  build_lists(rank);
  if (rank.local.block_begin[rank.weights.num_slots(rank.self())] == 0) rank.comm.publish_drained();
  publish(rank.local.flags->routes_ready, rank.comm.epoch());
  return Outcome::kDone;
}

}  // namespace monomoe::cpu
