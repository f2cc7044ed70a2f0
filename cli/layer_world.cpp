// A layer run seen from one rank's process: what the ranks exchange beside the call itself.
#include <algorithm>
#include <cstring>

#include "layer_run.hpp"

namespace monomoe::cli {
namespace {

// Rows before the rank's.
int64_t first_row(const LayerJob& job, int32_t rank) {
  int64_t first = 0;
  for (int32_t before = 0; before < rank; ++before) first += job.tokens_per_rank[static_cast<size_t>(before)];
  return first;
}

// As one process counts them: wall time is the slowest rank's, thread time is summed.
monomoe_times all_times(const RankWorld& world, const monomoe_times& own) {
  monomoe_times sum = own;
  sum.wall = sum.dispatch = sum.routes = sum.gemm1 = sum.gemm2 = sum.combine = sum.wait = 0;
  for (const monomoe_times& one : world.gather(own)) {
    sum.wall = std::max(sum.wall, one.wall);
    sum.dispatch += one.dispatch;
    sum.routes += one.routes;
    sum.gemm1 += one.gemm1;
    sum.gemm2 += one.gemm2;
    sum.combine += one.combine;
    sum.wait += one.wait;
  }
  return sum;
}

}  // namespace

void route_in_world(LayerJob& job) {
  RankWorld& world = *job.world;
  TokenInput& in = job.input;
  const int64_t first = first_row(job, world.rank()), count = job.tokens_per_rank[static_cast<size_t>(world.rank())];
  TokenInput own;
  own.tokens = count;
  own.hidden = in.hidden;
  own.topk = in.topk;
  own.x.assign(in.x.begin() + first * job.info.hidden, in.x.begin() + (first + count) * job.info.hidden);
  if (!in.token_ids.empty()) own.token_ids.assign(in.token_ids.begin() + first, in.token_ids.begin() + first + count);
  route_rows(job.checkpoint.get(), job.options.layer, job.options.input, own);
  const size_t slots = static_cast<size_t>(in.tokens * in.topk), begin = static_cast<size_t>(first * in.topk);
  const WorldMemory shared = world.host_memory(static_cast<int64_t>(slots * (sizeof(int64_t) + sizeof(float))));
  auto* ids = static_cast<int64_t*>(monomoe_world_memory_peers(shared.get())[0]);
  auto* weights = reinterpret_cast<float*>(ids + slots);
  std::copy(own.ids.begin(), own.ids.end(), ids + begin);
  std::copy(own.weights.begin(), own.weights.end(), weights + begin);
  world.barrier();
  in.ids.assign(ids, ids + slots);
  in.weights.assign(weights, weights + slots);
}

ForwardResult forward_in_world(const LayerJob& job, const Weights& weights, monomoe_workspace_options options, std::span<const int64_t> ids,
                               std::span<const float> route_weights) {
  RankWorld& world = *job.world;
  const Origin origin = job.options.capacity >= 0 ? Origin::kCommandLine : Origin::kFile;
  ForwardResult result;
  result.max_local_experts = options.max_experts;
  const Timer timer;
  int64_t bytes = 0;
  check(monomoe_symmetric_bytes(job.context.get(), &options, &bytes), origin);
  const WorldMemory memory = world.symmetric_memory(bytes);
  result.memory = monomoe_world_memory_how(memory.get());
  options.peers = monomoe_world_memory_peers(memory.get());
  monomoe_workspace* handle = nullptr;
  check(monomoe_workspace_create(job.context.get(), &options, &handle), origin);
  const Workspace workspace(handle);
  // Every rank leaves its rows in memory of rank 0.
  const size_t values = static_cast<size_t>(job.input.tokens * job.info.hidden);
  const WorldMemory output = world.host_memory(static_cast<int64_t>(values * sizeof(uint16_t)));
  auto* y = static_cast<uint16_t*>(monomoe_world_memory_peers(output.get())[0]);
  const std::vector<monomoe_tokens> tokens = job.tokens_view(ids, route_weights, options.topk, y);
  monomoe_times times = {};
  times.struct_size = sizeof(times);
  check(monomoe_forward_rank(weights.get(), workspace.get(), world.rank(), &tokens[static_cast<size_t>(world.rank())], nullptr, &times), Origin::kFile);
  result.times = all_times(world, times);  // all ranks have ended their calls then
  result.wall_seconds = timer.seconds();
  if (world.rank() == 0) result.y.assign(y, y + values);
  return result;
}

}  // namespace monomoe::cli
