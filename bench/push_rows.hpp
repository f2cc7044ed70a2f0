// Rows pushed into other GPUs' memory, as dispatch and combine push them: a warp a row, 16 bytes a store.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace monomoe::bench {

inline constexpr int kMostPeers = 64;

struct Push {
  const uint8_t* from;       // [rows][row_bytes]
  uint8_t* to[kMostPeers];   // [num_peers] each peer's place for this rank's rows, [rows][row_bytes]
  int num_peers;             // row r goes to peer r % num_peers
  int64_t rows, row_bytes;   // a multiple of 512
};

cudaError_t push_rows(const Push& push, int thread_blocks, cudaStream_t stream);

}  // namespace monomoe::bench
