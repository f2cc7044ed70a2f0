// Reads GPU memory and drops it: what a kernel that touches the same bytes is measured against, and what empties the L2 (unlike a memset, it
// leaves no dirty lines that are written back inside the next launch).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

// data: 16-byte aligned; sink: one word that is not written in practice.
void read_memory(const void* data, int64_t bytes, uint32_t* sink, int multiprocessors, cudaStream_t stream);
