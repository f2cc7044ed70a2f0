// See kernels.hpp.
#include "cuda/bench/kernels.hpp"

namespace monomoe::cuda {
namespace {

__global__ void read_memory_kernel(const uint4* data, int64_t count, uint32_t* sink) {
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

__global__ void fill_codes_kernel(uint64_t* data, int64_t count, uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    uint64_t z = seed + static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15ull;  // SplitMix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    // Sign and 5 random bits above code 0x20, which is 2^-3.
    data[i] = (z & 0x9F9F9F9F9F9F9F9Full) + 0x2020202020202020ull;
  }
}

}  // namespace

void read_memory(const void* data, int64_t bytes, uint32_t* sink, int multiprocessors, cudaStream_t stream) {
  read_memory_kernel<<<multiprocessors * 4, 512, 0, stream>>>(static_cast<const uint4*>(data), bytes / 16, sink);
}

void fill_codes(void* data, int64_t bytes, uint64_t seed, int multiprocessors, cudaStream_t stream) {
  fill_codes_kernel<<<multiprocessors * 4, 512, 0, stream>>>(static_cast<uint64_t*>(data), bytes / 8, seed);
}

}  // namespace monomoe::cuda
