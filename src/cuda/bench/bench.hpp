// The benchmark's side of the CUDA backend, plain C++ like backend.hpp: times calls that are on the GPU already, reads memory and multiplies for
// comparison, and tells where a launch's time went.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "comm/world.hpp"

namespace monomoe::cuda {

class Weights;
class Workspace;

enum class BenchMode : uint8_t { kCold, kGraph, kBackToBack };
inline constexpr int kBackToBackCalls = 10;  // timed as one

// One rank's tokens in host memory: x bf16 [num_tokens, hidden], ids and weights [num_tokens, topk].
struct BenchInput {
  int64_t num_tokens = 0;
  std::span<const uint16_t> x;
  std::span<const int32_t> ids;
  std::span<const float> weights;
  int64_t touched_slots = 0;  // experts of this rank that have tokens
};

struct BenchRequest {
  Weights* weights = nullptr;
  Workspace* workspace = nullptr;
  std::span<const BenchInput> ranks;  // of this process
  int64_t hidden = 0;
  BenchMode mode = BenchMode::kCold;
  int repeats = 1;
  World* world = nullptr;  // whose rank this process is: every function but gemm and trace is collective then; null: all ranks are here
};

struct BenchStep {
  std::string name;
  std::vector<double> seconds;
};

struct BenchSamples {
  std::vector<double> seconds;  // [repeats] of one call, of the slowest rank here
  std::vector<BenchStep> steps;  // of launches with several parts and one rank
  std::vector<std::vector<uint16_t>> first, last;  // [ranks here] outputs of the first run and of the last timed one
};

// The work of one GPU's ranks.
struct GpuRead {
  int gpu = 0;
  int64_t bytes = 0;
  std::vector<double> seconds;
};

struct GemmRate {
  double flops_per_second = 0;
  std::string library;
};

// One task of one thread block; times in ns of the GPU's global timer: taken, data here, multiplied, done. The middle two are 0 for tasks without.
struct TracedTask {
  int32_t rank = 0, thread_block = 0;
  int32_t kind = 0;  // TaskKind
  int32_t tile = 0, count = 0;
  int64_t block = 0;
  uint64_t time[4] = {};
};
struct LaunchTrace {
  std::vector<TracedTask> tasks;
  int32_t thread_blocks = 0;  // of all ranks
  bool complete = true;       // false: a thread block had more tasks than the trace holds
};

// Weights and workspaces are those of the backend that made it, which outlives it. One call at a time.
class Bench {
 public:
  virtual ~Bench() = default;
  virtual std::string device() const = 0;
  virtual Result<BenchSamples> run(const BenchRequest& request) = 0;
  // A plain read of the touched experts on every GPU.
  virtual Result<std::vector<GpuRead>> read(const BenchRequest& request) = 0;
  // An FP8 product of 8192^3 on the first rank's GPU. kUnavailable: no cuBLASLt here, or it cannot.
  virtual Result<GemmRate> gemm() = 0;
  virtual Result<LaunchTrace> trace(const BenchRequest& request) = 0;
};

}  // namespace monomoe::cuda
