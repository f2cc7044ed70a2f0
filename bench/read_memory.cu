// See read_memory.hpp.
#include "read_memory.hpp"

namespace {

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t bits = 0;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 7 * step < count; i += 8 * step) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint4 v = __ldcg(data + i + j * step);
      bits |= v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  for (; i < count; i += step) bits |= __ldcg(data + i).x;
  if (bits == 0x12345678u) *sink = bits;
}

}  // namespace

void read_memory(const void* data, int64_t bytes, uint32_t* sink, int multiprocessors, cudaStream_t stream) {
  read_kernel<<<multiprocessors * 4, 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}
