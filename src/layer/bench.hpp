// A benchmark behind the ABI's handle: a layer with random weights, the workspace of the launch measured last, and what was measured of the machine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "cuda/backend.hpp"
#include "layer/bench_routes.hpp"
#include "layer/weights.hpp"
#include "layer/workspace.hpp"
#include "monomoe/bench.h"

struct monomoe_bench {
  const monomoe_context* context = nullptr;
  monomoe::Problem problem;
  uint64_t seed = 0;
  std::vector<std::vector<uint8_t>> distinct;  // packed experts that differ; expert e is distinct[e % size]
  std::unique_ptr<monomoe_weights> weights;
  std::unique_ptr<monomoe_workspace> workspace;
  monomoe::cuda::LaunchVariant launch = monomoe::cuda::LaunchVariant::kOne;  // of the workspace
  std::vector<std::vector<uint16_t>> x;                                      // [ranks] bf16 [tokens so far, hidden]
  std::vector<uint64_t> flush;                                               // CPU: read to empty the caches
  std::optional<monomoe::Result<monomoe::cuda::GemmRate>> gemm;              // once it was needed
  std::unique_ptr<monomoe::cuda::Bench> cuda;
};

namespace monomoe::layer {

inline constexpr int kDefaultRepeats = 20;

// A call as the caller wants it measured, checked.
struct BenchCall {
  int64_t num_tokens = 0;
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
BenchTokens bench_tokens(const PlacementTable& placement, const Routing& routing, int64_t topk, int64_t tokens, uint64_t seed);

// The same figures on both backends.
struct Measured {
  cuda::BenchSamples samples;
  std::vector<cuda::GpuRead> reads;  // one a GPU; one for the CPU, as gpu -1
};
Result<Measured> measure_cpu(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);
Result<Measured> measure_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);
Result<cuda::LaunchTrace> trace_cuda(monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens);

// Outputs of the first and the last run against each other, and, if asked, of the first against the CPU backend. kCheckFailed with the place.
Result<void> compare_runs(const monomoe_bench& bench, const Measured& measured);
Result<void> compare_with_cpu(const monomoe_bench& bench, const BenchTokens& tokens, const Measured& measured);

// Sorted samples: the middle, or the mean of the middle two; and the value below which a share of them lies (nearest rank).
double median_of(std::vector<double> samples);
double quantile_of(std::vector<double> samples, double share);

std::string bench_report(const monomoe_bench& bench, const BenchCall& call, const BenchTokens& tokens, const Measured& measured, bool checked_with_cpu);
std::string trace_report(const cuda::LaunchTrace& trace, const std::string& name);

}  // namespace monomoe::layer
