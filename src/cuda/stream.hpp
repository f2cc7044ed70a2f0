// A stream of the current GPU that waits for no other.
#pragma once

#include <memory>

#include "cuda/status.hpp"

namespace monomoe::cuda {

struct DestroyStream {
  void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, DestroyStream>;

// The driver gives a stream its hardware queue at the first use, and streams that threads use first at the same moment can get the same one, where
// launches that wait for each other stand in line (measured with driver 580). So the first use is here.
inline Result<Stream> make_stream() {
  cudaStream_t raw = nullptr;
  if (auto made = check(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking), "creating a stream"); !made) return made.error();
  Stream stream(raw);
  auto word = DeviceBuffer::make(sizeof(uint32_t), "the first use of a stream");
  if (!word) return word.error();
  if (auto used = check(cudaMemsetAsync(word.value().data(), 0, sizeof(uint32_t), raw), "using a stream"); !used) return used.error();
  if (auto used = check(cudaStreamSynchronize(raw), "using a stream"); !used) return used.error();
  return Result<Stream>(std::move(stream));
}

}  // namespace monomoe::cuda
