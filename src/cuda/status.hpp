// CUDA runtime errors as Results, and device memory that frees itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.hpp"

namespace monomoe::cuda {

// What was being done, and what the runtime says.
inline Result<void> check(cudaError_t status, const std::string& doing) {
  if (status == cudaSuccess) return {};
  const Status kind = status == cudaErrorMemoryAllocation ? Status::kUnavailable : Status::kInternal;
  return Error{kind, doing + ": CUDA says " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status)};
}

// Memory of the device that was current when it was made.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) cudaFree(data_);
  }

  static Result<DeviceBuffer> make(int64_t bytes, const char* what) {
    DeviceBuffer buffer;
    buffer.bytes_ = bytes;
    const std::string doing = "allocating " + std::to_string(bytes) + " bytes of device memory for " + what;
    if (auto made = check(cudaMalloc(&buffer.data_, bytes > 0 ? bytes : 1), doing); !made) return made.error();
    return Result<DeviceBuffer>(std::move(buffer));
  }

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace monomoe::cuda
