// What the rest of the library sees of the CUDA backend: plain C++, so that a build without CUDA has the same face (absent.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "comm/fingerprint.hpp"
#include "comm/shareable_memory.hpp"
#include "cuda/bench/bench.hpp"
#include "cuda/launch_variant.h"
#include "plan/placement_table.hpp"
#include "plan/problem.h"

namespace monomoe::cuda {

// One rank's tokens, checked by the caller. A pointer may be host memory (then it is staged) or memory of the rank's GPU.
struct RankCall {
  int64_t num_tokens = 0;
  const void* x = nullptr;  // bf16, or e4m3 with x_scales
  const float* x_scales = nullptr;
  const void* topk_ids = nullptr;
  bool wide_ids = false;
  const float* topk_weights = nullptr;
  uint16_t* y = nullptr;
  const int64_t* num_tokens_device = nullptr;  // not null: the launch reads the number here, num_tokens is the most it may be; enqueue only
};

// One rank of a world as the caller places it.
struct WorldGpu {
  int32_t ranks = 1, rank = 0;
  int gpu = -1;           // -1: the calling thread's current one
  int ranks_per_gpu = 1;  // all of which must be resident together
};

// Where a pointer leads. gpu: the device's number, -1 for host memory; managed memory belongs to every GPU.
struct MemoryPlace {
  int gpu = -1;
  bool managed = false;
};

// The packed experts of a layer on the GPUs of this process's ranks.
class Weights {
 public:
  virtual ~Weights() = default;
  // Into every copy of the expert on these; packed: expert_layout(problem).bytes. Any thread.
  virtual Result<void> upload(int32_t expert, const uint8_t* packed) = 0;
  // The experts of one of these ranks, slot after slot, on its GPU; null if it has none.
  virtual uint8_t* slots(int32_t rank) const = 0;
  virtual int gpu(int32_t rank) const = 0;
};

// The memory of this process's ranks, and the calls on it: of all ranks, or of one rank of a world.
class Workspace {
 public:
  virtual ~Workspace() = default;
  virtual int gpu(int32_t rank) const = 0;
  // All ranks of this process at once; returns when they have finished. weights[rank], calls[rank], of which a world's other ranks' are not
  // looked at; the layer fits the workspace. y that is host memory is
  // written on success only. wall: seconds, may be null.
  virtual Result<void> run(std::span<Weights* const> weights, std::span<const RankCall> calls, double* wall) = 0;
  // One rank's launches on the caller's stream: no wait, no allocation; all pointers are memory of the rank's GPU.
  virtual Result<void> enqueue(Weights& weights, int32_t rank, const RankCall& call, void* stream) = 0;
  virtual bool is_capturing(int32_t rank, void* stream) const = 0;
  // Nothing, or the failure that made the workspace useless: looked up in the records of the launches that have ended.
  virtual Result<void> condition() const = 0;
  // The workspace is useless from now on, because of this.
  virtual void poison(Error cause) = 0;
  // Fills every region but flags and counters.
  virtual Result<void> fill(uint8_t byte) = 0;
};

// The GPUs of this process's ranks. Weights and workspaces must not outlive it.
class Backend {
 public:
  virtual ~Backend() = default;
  // "2 ranks on GPU 0 (NVIDIA H200), 66 thread blocks each".
  virtual const std::string& description() const = 0;
  virtual int gpu(int32_t rank) const = 0;  // of a rank of this process
  virtual Result<std::unique_ptr<Weights>> make_weights(const Problem& problem, const PlacementTable& placement, float swiglu_limit, uint64_t tag) = 0;
  // problem, max_slots: as for the CPU's workspace. world: null if all ranks are here; else collective over the ranks of the world. launch: of every call of every rank.
  virtual Result<std::unique_ptr<Workspace>> make_workspace(const Problem& problem, int64_t max_slots, uint32_t timeout_ms,
                                                            LaunchVariant launch, const WorldRank* world) = 0;
  virtual Result<MemoryPlace> place(const void* pointer) const = 0;
  // For the ranks of this process.
  virtual Result<std::unique_ptr<Bench>> make_bench() = 0;
};

bool is_built();
// What the build lacked or was told, as a sentence without a stop; empty if built.
const char* why_not_built();
// The oldest CUDA version a driver must support, as cuDriverGetVersion counts (13000 = 13.0); 0 if not built.
int required_driver_version();
// Chooses the GPUs. kUnavailable, with what was found and what is wanted, if this machine cannot.
Result<std::unique_ptr<Backend>> make_backend(int32_t ranks);
Result<std::unique_ptr<Backend>> make_world_backend(const WorldGpu& world);

// How processes map each other's GPU memory: virtual memory as a file descriptor, or CUDA IPC handles.
enum class MemorySharing { kFile, kIpc };
// Zeroed memory of the GPU; kUnavailable if it cannot be had or shared in this way.
Result<std::unique_ptr<ShareableMemory>> make_shareable_memory(MemorySharing sharing, int gpu, int64_t bytes);
// The number itself, or the calling thread's current GPU for -1.
Result<int> usable_gpu(int gpu);
// Why the GPU cannot write the memory of the one with these 16 bytes of UUID, a sentence without a stop; "" if it can, or if this process does
// not see that one, so that only mapping it will tell.
std::string why_no_peer_access(int gpu, std::string_view uuid);

}  // namespace monomoe::cuda
