// See rank_memory.hpp.
#include "cuda/rank_memory.hpp"

#include "cuda/unfused/params.h"

namespace monomoe::cuda {
namespace {

// Returns when the bytes are on the GPU. A plain copy from pageable memory may still be on its way, and launches on other streams do not wait.
Result<void> copy_to_gpu(void* gpu, const void* host, int64_t bytes, const std::string& doing) {
  if (auto copied = check(cudaMemcpyAsync(gpu, host, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread), doing); !copied) return copied;
  return check(cudaStreamSynchronize(cudaStreamPerThread), doing);
}

}  // namespace

Result<RankWeights> RankWeights::make(const Problem& problem, const PlacementTable& placement, int32_t rank) {
  RankWeights weights;
  const PlacementView view = placement.view();
  weights.num_slots_ = view.num_slots(rank);
  weights.expert_bytes_ = expert_layout(problem).bytes;
  auto experts = DeviceBuffer::make(weights.num_slots_ * weights.expert_bytes_, "packed experts");
  if (!experts) return experts.error();
  weights.experts_ = experts.take();
  std::vector<int32_t> serving(problem.ranks * problem.experts);
  for (int32_t src = 0; src < problem.ranks; ++src) {
    for (int32_t expert = 0; expert < problem.experts; ++expert) {
      const ExpertCopy copy = view.serving_copy(expert, src);
      serving[src * problem.experts + expert] = copy.rank << 16 | copy.slot;
    }
  }
  auto table = DeviceBuffer::make(serving.size() * sizeof(serving[0]), "the placement table");
  if (!table) return table.error();
  weights.serving_ = table.take();
  auto copied = copy_to_gpu(weights.serving_.data(), serving.data(), weights.serving_.bytes(), "copying the placement table");
  if (!copied) return copied.error();
  return weights;
}

Result<void> RankWeights::upload(int32_t slot, const uint8_t* packed) const {
  return copy_to_gpu(this->slot(slot), packed, expert_bytes_, "copying a packed expert");
}

Result<RankWorkspace> RankWorkspace::make(const Problem& problem, int64_t max_slots, LaunchVariant launch) {
  RankWorkspace workspace;
  auto local = DeviceBuffer::make(gpu_workspace_layout(problem, max_slots).bytes, "the workspace");
  if (!local) return local.error();
  auto state = DeviceBuffer::make(sizeof(DeviceState), "counters");
  if (!state) return state.error();
  int gpu = 0, multiprocessors = 0;
  if (auto done = check(cudaGetDevice(&gpu), "asking for the GPU"); !done) return done.error();
  if (auto done = check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, gpu), "counting multiprocessors"); !done) {
    return done.error();
  }
  auto scratch = DeviceBuffer::make(multiprocessors * kScratchBytes, "the thread blocks' scratch");
  if (!scratch) return scratch.error();
  workspace.scratch_ = scratch.take();
  if (launch == LaunchVariant::kUnfused) {
    auto unfused = DeviceBuffer::make(unfused_layout(problem, max_slots).bytes, "the fp32 sums of the unfused launch");
    if (!unfused) return unfused.error();
    workspace.unfused_ = unfused.take();
  }
  workspace.local_ = local.take();
  workspace.state_ = state.take();
  if (auto done = check(cudaMemset(workspace.state(), 0, sizeof(DeviceState)), "clearing counters"); !done) return done.error();
  // The launches run on streams that do not wait for the one the clearing ran on.
  if (auto done = check(cudaDeviceSynchronize(), "clearing counters"); !done) return done.error();
  void* error = nullptr;
  if (auto done = check(cudaHostAlloc(&error, sizeof(DeviceError), cudaHostAllocMapped | cudaHostAllocPortable), "allocating the error record"); !done) {
    return done.error();
  }
  workspace.error_.reset(static_cast<DeviceError*>(error));
  *workspace.error_ = {};
  return workspace;
}

}  // namespace monomoe::cuda
