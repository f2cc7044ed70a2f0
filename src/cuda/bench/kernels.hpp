// The benchmark's own kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace monomoe::cuda {

// Reads GPU memory and drops it: what a kernel that touches the same bytes is measured against, and what empties the L2 (unlike a memset, it
// leaves no dirty lines that are written back inside the next launch). data: 16-byte aligned; sink: one word that is not written in practice.
void read_memory(const void* data, int64_t bytes, uint32_t* sink, int multiprocessors, cudaStream_t stream);

// Random e4m3 codes of both signs, magnitudes 1/8 to 1.875, the operands of a product. bytes: a multiple of 8.
void fill_codes(void* data, int64_t bytes, uint64_t seed, int multiprocessors, cudaStream_t stream);

}  // namespace monomoe::cuda
