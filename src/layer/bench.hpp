// A benchmark behind the ABI's handle: a layer with random weights, the workspace of the launch measured last, and what was measured of the machine.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "cuda/backend.hpp"
#include "layer/bench_routes.hpp"
#include "layer/weights.hpp"
#include "layer/workspace.hpp"
#include "layer/world.hpp"
#include "monomoe/bench.h"

struct monomoe_bench {
  const monomoe_context* context = nullptr;
  monomoe_world* world = nullptr;  // whose rank this process is; null: all ranks are here
  monomoe::Problem problem;
  uint64_t seed = 0;
  std::vector<std::vector<uint8_t>> distinct;  // packed experts that differ; expert e is distinct[e % size]
  std::unique_ptr<monomoe_weights> weights;
  std::unique_ptr<monomoe_world_memory> memory;  // the workspace's, in a world
  std::unique_ptr<monomoe_workspace> workspace;
  monomoe::cuda::LaunchVariant launch = monomoe::cuda::LaunchVariant::kOne;  // of the workspace
  std::vector<std::vector<uint16_t>> x;                                      // [ranks here] bf16 [tokens so far, hidden]
  std::vector<uint64_t> flush;                                               // CPU: read to empty the caches
  std::optional<monomoe::Result<monomoe::cuda::GemmRate>> gemm;              // once it was needed
  std::unique_ptr<monomoe::cuda::Bench> cuda;

  int32_t first_rank() const { return context->only_rank < 0 ? 0 : context->only_rank; }
  int32_t ranks_here() const { return context->only_rank < 0 ? context->num_ranks : 1; }
};

namespace monomoe::layer {

inline constexpr int kDefaultRepeats = 20;

// A call as the caller wants it measured, checked.
struct BenchCall {
  std::vector<int64_t> tokens;  // [ranks]
  cuda::LaunchVariant launch = cuda::LaunchVariant::kOne;
  cuda::BenchMode mode = cuda::BenchMode::kCold;
  Routing routing;
  int repeats = kDefaultRepeats;
  bool check = false;
};

// Routes and route weights of every rank, and the work that follows from them.
struct BenchTokens {
  std::vector<std::vector<int32_t>> ids;    // [ranks] [tokens, topk]
  std::vector<std::vector<float>> weights;  // [ranks] [tokens, topk]
  std::vector<int64_t> touched;             // [ranks] experts there that have tokens
  std::vector<int64_t> served;              // [ranks] routes that the rank's experts serve
  int64_t largest_expert = 0;               // routes of the expert that has most

  int64_t routes() const;
  int64_t touched_experts() const;
};
BenchTokens bench_tokens(const PlacementTable& placement, const Routing& routing, int64_t topk, std::span<const int64_t> tokens, uint64_t seed);

// The work of one GPU's ranks, or of the CPU's, and what the machine could do of it at most.
struct WorkLimits {
  int64_t bytes = 0, routes = 0;
  double read_seconds = 0;
  double flops_per_second = 0;  // 0: not known
};

// The same figures on both backends.
struct Measured {
  cuda::BenchSamples samples;  // outputs: of the ranks here
  std::vector<WorkLimits> limits;
  std::vector<double> medians;  // [ranks] of a world's ranks; empty if all are here
};
Result<Measured> measure_cpu(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);
Result<Measured> measure_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);
Result<cuda::LaunchTrace> trace_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);

// Outputs of the first and the last run against each other, and, if asked, of the first against the CPU backend. kCheckFailed with the place.
Result<void> compare_runs(const monomoe_bench& bench, const Measured& measured);
Result<void> compare_with_cpu(const monomoe_bench& bench, const BenchTokens& tokens, const Measured& measured);

// Of a world's ranks; collective. Layers and calls that differ are usage errors, naming the rank.
Result<void> require_same_layer(World& world, const monomoe_bench_layer& layer);
Result<void> require_same_call(World& world, const BenchCall& call);
// Nothing where all ranks are in this process; else returns when all ranks have come.
Result<void> meet(const monomoe_bench& bench);
// The slowest rank's samples, and every rank's limits and median.
Result<void> combine_ranks(World& world, Measured& measured);

// Sorted samples: the middle, or the mean of the middle two; and the value below which a share of them lies (nearest rank).
double median_of(std::vector<double> samples);
double quantile_of(std::vector<double> samples, double share);

std::string bench_report(const monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens, const Measured& measured, bool checked_with_cpu);
std::string trace_report(const cuda::LaunchTrace& trace, const std::string& name);

}  // namespace monomoe::layer
