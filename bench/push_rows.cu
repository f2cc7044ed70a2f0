// See push_rows.hpp.
#include "push_rows.hpp"

namespace monomoe::bench {
namespace {

constexpr int kThreads = 512, kWarp = 32;

__global__ void __launch_bounds__(kThreads) push_rows_kernel(const Push push) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * (kThreads / kWarp);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t pieces = push.row_bytes / 16;
  for (int64_t row = first; row < push.rows; row += warps) {
    const auto* from = reinterpret_cast<const uint4*>(push.from + row * push.row_bytes);
    auto* to = reinterpret_cast<uint4*>(push.to[row % push.num_peers] + row * push.row_bytes);
    for (int64_t piece = lane; piece < pieces; piece += 4 * kWarp) {  // four loads on their way at a time
      uint4 held[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (piece + i * kWarp < pieces) held[i] = from[piece + i * kWarp];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (piece + i * kWarp < pieces) to[piece + i * kWarp] = held[i];
      }
    }
  }
}

}  // namespace

cudaError_t push_rows(const Push& push, int thread_blocks, cudaStream_t stream) {
  push_rows_kernel<<<thread_blocks, kThreads, 0, stream>>>(push);
  return cudaGetLastError();
}

}  // namespace monomoe::bench
