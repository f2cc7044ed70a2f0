// Stands for the CUDA backend in a build without it; see cmake/cuda.cmake.
#include "cuda/backend.hpp"

namespace monomoe::cuda {

bool is_built() { return false; }
const char* why_not_built() { return MONOMOE_NO_CUDA_REASON; }
int required_driver_version() { return 0; }
Result<std::unique_ptr<Backend>> make_backend(int32_t) {
  return unavailable("this build has no CUDA backend: " MONOMOE_NO_CUDA_REASON
                     "; './run build' makes one, or cmake -DMONOMOE_CUDA=ON with nvcc 12.4 or newer");
}
Result<std::unique_ptr<Backend>> make_world_backend(const WorldGpu& world) { return make_backend(world.ranks); }
Result<std::unique_ptr<ShareableMemory>> make_shareable_memory(MemorySharing, int, int64_t) { return make_backend(1).error(); }
Result<int> usable_gpu(int) { return make_backend(1).error(); }
std::string why_no_peer_access(int, std::string_view) { return make_backend(1).error().message; }

}  // namespace monomoe::cuda
