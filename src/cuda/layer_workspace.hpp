// The memory of this process's ranks on their GPUs, and the calls on it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/backend.hpp"
#include "cuda/devices.hpp"
#include "cuda/launch.hpp"
#include "cuda/layer_weights.hpp"
#include "cuda/rank_memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/symmetric_memory.hpp"

namespace monomoe::cuda {

// Where a launch writes what its tasks did; no events: nothing is written.
struct TraceBuffer {
  TraceEvent* events = nullptr;  // [thread blocks][per_block] of the rank's GPU, zero before the launch
  int32_t per_block = 0;
};

// Device copies of one rank's host inputs and its output; they grow as calls need.
struct Staging {
  DeviceBuffer x, x_scales, ids, weights, y;
};

class LayerWorkspace final : public Workspace {
 public:
  static Result<std::unique_ptr<Workspace>> make(const Topology& topology, const Problem& problem, int64_t max_slots, uint32_t timeout_ms,
                                                 LaunchVariant variant, const WorldRank* world);
  ~LayerWorkspace() override;

  int gpu(int32_t rank) const override { return topology_.gpu[rank]; }
  Result<void> run(std::span<Weights* const> weights, std::span<const RankCall> calls, double* wall) override;
  Result<void> enqueue(Weights& weights, int32_t rank, const RankCall& call, void* stream) override;
  bool is_capturing(int32_t rank, void* stream) const override;
  Result<void> condition() const override;
  void poison(Error cause) override;
  Result<void> fill(uint8_t byte) override;

  // For the benchmark: a call's launches one by one, in order, all ranks' first before anyone's second.
  int num_parts() const { return num_launches(variant_); }
  const char* part_name(int part) const { return launch_name(variant_, part); }
  Result<void> enqueue_part(const LayerWeights& weights, int32_t rank, const RankCall& call, int part, const TraceBuffer& trace, cudaStream_t stream);

 private:
  LayerWorkspace(const Topology& topology, const Problem& problem, int64_t max_slots, uint32_t timeout_ms, LaunchVariant variant)
      : topology_(topology), problem_(problem), max_slots_(max_slots), timeout_ms_(timeout_ms), variant_(variant) {}

  Result<void> make_symmetric(const WorldRank* world);
  // Copies what is host memory to the GPU; the result points to GPU memory only.
  Result<RankCall> stage(int32_t rank, const RankCall& call, int64_t hidden);
  Params params(const LayerWeights& weights, int32_t rank, const RankCall& call) const;
  RankLaunch rank_launch(const LayerWeights& weights, int32_t rank, const RankCall& call) const;
  // One of the rank's num_launches(variant_) launches of a call.
  Result<void> launch(const RankLaunch& launch, int index, cudaStream_t stream) const;
  Result<void> finish(std::span<const RankCall> calls, std::span<const RankCall> staged, int64_t hidden);
  int32_t ranks() const { return static_cast<int32_t>(problem_.ranks); }

  const Topology& topology_;
  Problem problem_;  // the largest layer's
  int64_t max_slots_;
  uint32_t timeout_ms_;
  LaunchVariant variant_;
  std::unique_ptr<SymmetricMemory> symmetric_;
  // [ranks]; empty for ranks elsewhere
  std::vector<RankWorkspace> memory_;
  std::vector<Stream> streams_;
  std::vector<Staging> staging_;
  mutable std::mutex cause_lock_;
  std::optional<Error> cause_;
};

}  // namespace monomoe::cuda
