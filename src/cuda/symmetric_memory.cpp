// See symmetric_memory.hpp. The host reaches the words by copies.
#include "cuda/symmetric_memory.hpp"

#include <fmt/format.h>

#include "cuda/devices.hpp"

namespace monomoe::cuda {
namespace {

// Returns when the bytes are there; waits for no other stream of the library.
Result<void> copy(void* to, const void* from, size_t bytes) {
  constexpr const char* kDoing = "reaching symmetric memory (is it mapped for this GPU, for reading and writing?)";
  if (auto copied = check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread), kDoing); !copied) return copied;
  return check(cudaStreamSynchronize(cudaStreamPerThread), kDoing);
}

}  // namespace

Result<std::unique_ptr<SymmetricMemory>> DeviceMemory::make(std::span<const int> gpu, const SymmetricLayout& layout) {
  auto memory = std::make_unique<DeviceMemory>();
  memory->bytes_ = layout.bytes;
  for (size_t rank = 0; rank < gpu.size(); ++rank) {
    const CurrentGpu current(gpu[rank]);
    auto buffer = DeviceBuffer::make(layout.bytes, "symmetric memory");
    if (!buffer) {
      return Error{buffer.error().status,
                   fmt::format("rank {} on GPU {}: {}; lower the capacity or use more GPUs", rank, gpu[rank], buffer.error().message)};
    }
    // Flags and arrival counters begin at zero; everything else may hold anything.
    if (auto done = check(cudaMemset(buffer.value().data(), 0, layout.route_ids), "clearing flags"); !done) return done.error();
    // The launches run on streams that do not wait for the one the clearing ran on.
    if (auto done = check(cudaDeviceSynchronize(), "clearing flags"); !done) return done.error();
    memory->buffers_.push_back(buffer.take());
  }
  return std::unique_ptr<SymmetricMemory>(std::move(memory));
}

Result<void> DeviceMemory::read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const {
  return copy(words.data(), base(rank) + offset, words.size_bytes());
}

Result<void> DeviceMemory::write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const {
  return copy(base(rank) + offset, words.data(), words.size_bytes());
}

Result<void> ExternalDeviceMemory::read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const {
  const CurrentGpu current(gpu_);
  return copy(words.data(), base(rank) + offset, words.size_bytes());
}

Result<void> ExternalDeviceMemory::write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const {
  const CurrentGpu current(gpu_);
  return copy(base(rank) + offset, words.data(), words.size_bytes());
}

}  // namespace monomoe::cuda
