// Stands for the CUDA backend in a build without it; see cmake/cuda.cmake.
#include "cuda/backend.hpp"

namespace monomoe::cuda {

bool is_built() { return false; }
int required_driver_version() { return 0; }
Result<std::unique_ptr<Backend>> make_backend(int32_t) {
  return unavailable("this build has no CUDA backend; build with -DMONOMOE_CUDA=ON and nvcc 12.4 or newer");
}
Result<std::unique_ptr<Backend>> make_world_backend(const WorldGpu& world) { return make_backend(world.ranks); }

}  // namespace monomoe::cuda
