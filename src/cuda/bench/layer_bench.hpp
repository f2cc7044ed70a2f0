// Times calls of the layer on this process's GPUs. All ranks begin together: every stream waits for one event, behind which all launches of a
// call are enqueued before it is reached. The ranks of a world meet in a call without tokens, which ends on all of them at almost the same time;
// what lies between it and the timed call takes all of them equally long.
#pragma once

#include <memory>
#include <vector>

#include "cuda/bench/bench.hpp"
#include "cuda/bench/events.hpp"
#include "cuda/layer_workspace.hpp"

namespace monomoe::cuda {

struct DestroyGraph {
  void operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }
};
using GraphExec = std::unique_ptr<CUgraphExec_st, DestroyGraph>;

class LayerBench final : public Bench {
 public:
  static Result<std::unique_ptr<Bench>> make(const Topology& topology);
  ~LayerBench() override;

  std::string device() const override { return device_; }
  Result<BenchSamples> run(const BenchRequest& request) override;
  Result<std::vector<GpuRead>> read(const BenchRequest& request) override;
  Result<GemmRate> gemm() override;
  Result<LaunchTrace> trace(const BenchRequest& request) override;

 private:
  struct Gpu {
    int number = 0, multiprocessors = 0;
    std::vector<int32_t> ranks;  // of ranks_
    DeviceBuffer flush, sink;
    Event flushed;
  };
  struct Rank {
    int32_t number = 0;  // of the world
    int gpu = 0, thread_blocks = 0;
    Stream stream;
    EventPair timer;
    DeviceBuffer x, ids, weights, y;
  };
  // A call whose tokens are on the GPUs. trace: null, or a buffer [ranks * parts].
  struct Prepared {
    LayerWeights& weights;
    LayerWorkspace& workspace;
    std::vector<RankCall> calls;
    int64_t hidden;
    World* world;
    std::vector<GraphExec> graphs;  // [ranks], or empty: launched by the host
    std::vector<DeviceBuffer>* trace = nullptr;
  };

  explicit LayerBench(const Topology& topology) : topology_(topology) {}
  Result<void> add_gpu(int number);
  Result<void> add_rank(int32_t rank);
  Result<Prepared> prepare(const BenchRequest& request);
  Result<void> upload(DeviceBuffer& buffer, const void* data, int64_t bytes, const Rank& rank) const;
  Result<GraphExec> capture(const Prepared& call, int32_t rank) const;
  // Lets the ranks of a world come together; nothing if all are here.
  Result<void> meet(const Prepared& call) const;
  // Poisons the outputs, empties the L2 `flushes` times and lets all streams wait for the end of that.
  Result<void> open_gate(const Prepared& call, uint8_t poison, int flushes) const;
  Result<void> flush(const Gpu& gpu, cudaStream_t stream, int times) const;
  Result<void> enqueue(const Prepared& call) const;
  Result<void> wait(const Prepared& call) const;
  // Seconds of one call of the slowest rank.
  Result<double> sample(const Prepared& call, BenchMode mode, uint8_t poison) const;
  Result<std::vector<BenchStep>> steps(const Prepared& call, int repeats) const;
  Result<std::vector<std::vector<uint16_t>>> outputs(const Prepared& call) const;
  int32_t num_ranks() const { return static_cast<int32_t>(ranks_.size()); }

  const Topology& topology_;
  std::string device_;
  std::vector<Gpu> gpus_;
  std::vector<Rank> ranks_;  // of this process
  Event gate_;
};

}  // namespace monomoe::cuda
