// Which GPU each rank runs on, and the CUDA runtime's notion of a current device kept out of the caller's way.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "base/result.hpp"
#include "cuda/backend.hpp"

namespace monomoe::cuda {

// One entry a rank of the world; those of ranks in other processes mean nothing.
struct Topology {
  int32_t first_rank = 0, end_rank = 0;  // of this process
  bool is_world = false;                 // one rank among others elsewhere
  std::vector<int> gpu;
  std::vector<int> thread_blocks;  // of a launch; the ranks of one GPU share its multiprocessors, so that all are resident together
  std::string description;
};

// With as many Hopper GPUs as ranks, one each and peer access between all of them; else all ranks on the first one.
Result<Topology> choose_topology(int ranks);
// One rank of a world, on the GPU its caller names. Nothing is said to the driver about peers: their memory comes mapped.
Result<Topology> world_topology(const WorldGpu& world);

// Makes a GPU current while it lives, and the caller's again afterwards.
class CurrentGpu {
 public:
  explicit CurrentGpu(int gpu) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = gpu;
    if (before_ != gpu) cudaSetDevice(gpu);
    gpu_ = gpu;
  }
  ~CurrentGpu() {
    if (before_ != gpu_) cudaSetDevice(before_);
  }
  CurrentGpu(const CurrentGpu&) = delete;
  CurrentGpu& operator=(const CurrentGpu&) = delete;

 private:
  int before_ = 0, gpu_ = 0;
};

}  // namespace monomoe::cuda
