// Symmetric memory in GPUs: this process's own for all ranks, or what the ranks of a world were handed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "comm/symmetric_memory.hpp"
#include "cuda/status.hpp"
#include "plan/memory_layout.h"

namespace monomoe::cuda {

// One allocation a rank on its GPU, with flags and arrival counters zero.
class DeviceMemory final : public SymmetricMemory {
 public:
  // gpu[rank]; peer access between them is enabled.
  static Result<std::unique_ptr<SymmetricMemory>> make(std::span<const int> gpu, const SymmetricLayout& layout);

  int32_t num_ranks() const override { return static_cast<int32_t>(buffers_.size()); }
  std::byte* base(int32_t rank) const override { return reinterpret_cast<std::byte*>(buffers_[rank].data()); }
  int64_t bytes() const override { return bytes_; }
  Result<void> read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const override;
  Result<void> write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const override;

 private:
  std::vector<DeviceBuffer> buffers_;
  int64_t bytes_ = 0;
};

// The caller's, mapped for the GPU of the rank that uses it.
class ExternalDeviceMemory final : public ExternalMemory {
 public:
  ExternalDeviceMemory(std::span<void* const> peers, int64_t bytes, int gpu) : ExternalMemory(peers, bytes), gpu_(gpu) {}

  Result<void> read_words(int32_t rank, int64_t offset, std::span<uint64_t> words) const override;
  Result<void> write_words(int32_t rank, int64_t offset, std::span<const uint64_t> words) const override;

 private:
  int gpu_;
};

}  // namespace monomoe::cuda
