// The CUDA backend behind the face of backend.hpp.
#include "cuda/backend.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "cuda/bench/layer_bench.hpp"
#include "cuda/devices.hpp"
#include "cuda/layer_weights.hpp"
#include "cuda/layer_workspace.hpp"
#include "cuda/status.hpp"
#include "cuda/symmetric_memory.hpp"
#include "plan/memory_layout.h"

namespace monomoe::cuda {
namespace {

class HopperBackend final : public Backend {
 public:
  explicit HopperBackend(Topology topology) : topology_(std::move(topology)) {}

  const std::string& description() const override { return topology_.description; }
  int gpu(int32_t rank) const override { return topology_.gpu[rank]; }
  Result<std::unique_ptr<Weights>> make_weights(const Problem& problem, const PlacementTable& placement, float swiglu_limit,
                                                uint64_t tag) override {
    return LayerWeights::make(topology_, problem, placement, swiglu_limit, tag);
  }
  Result<std::unique_ptr<Workspace>> make_workspace(const Problem& problem, int64_t max_slots, uint32_t timeout_ms, LaunchVariant launch,
                                                    const WorldRank* world) override {
    auto made = LayerWorkspace::make(topology_, problem, max_slots, timeout_ms, launch, world);
    if (!made && world != nullptr)
      tell_failure(ExternalDeviceMemory(world->peers, symmetric_layout(problem).bytes, topology_.gpu[world->rank]), problem, *world);
    return made;
  }
  Result<MemoryPlace> place(const void* pointer) const override {
    cudaPointerAttributes attributes{};
    if (auto read = check(cudaPointerGetAttributes(&attributes, pointer), "asking whose memory a pointer is"); !read) {
      (void)cudaGetLastError();
      return read.error();
    }
    if (attributes.type == cudaMemoryTypeDevice) return MemoryPlace{attributes.device, false};
    return MemoryPlace{-1, attributes.type == cudaMemoryTypeManaged};
  }
  Result<std::unique_ptr<Bench>> make_bench() override { return LayerBench::make(topology_); }

 private:
  const Topology topology_;
};

}  // namespace

bool is_built() { return true; }
const char* why_not_built() { return ""; }

// Any driver of the runtime's major version runs what was built with it.
int required_driver_version() { return CUDART_VERSION / 1000 * 1000; }

Result<std::unique_ptr<Backend>> make_backend(int32_t ranks) {
  auto topology = choose_topology(ranks);
  if (!topology) return topology.error();
  return std::unique_ptr<Backend>(std::make_unique<HopperBackend>(topology.take()));
}

Result<std::unique_ptr<Backend>> make_world_backend(const WorldGpu& world) {
  auto topology = world_topology(world);
  if (!topology) return topology.error();
  return std::unique_ptr<Backend>(std::make_unique<HopperBackend>(topology.take()));
}

}  // namespace monomoe::cuda
