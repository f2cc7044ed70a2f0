// What NVIDIA hardware this machine has, asked of the driver at run time: nothing is linked, so the library loads everywhere.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace monomoe::layer {

struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  std::array<uint8_t, 16> uuid = {};  // the same in every process, whatever it sees and in whatever order

  std::string uuid_text() const;  // "GPU-0123abcd-...", as nvidia-smi and CUDA_VISIBLE_DEVICES have it
  bool is_mig() const { return name.find(" MIG ") != std::string::npos; }
};

struct CudaProbe {
  bool driver_found = false;   // libcuda.so.1 loads
  bool driver_works = false;   // cuInit succeeded
  std::string driver_problem;  // a sentence when either did not hold
  int driver_version = 0;      // of the CUDA driver API, e.g. 12080
  std::vector<CudaDevice> devices;
};

CudaProbe probe_cuda();

// Why the CUDA backend cannot run here: what was found, what is wanted and what to do. Empty: it can.
std::string cuda_unavailable_reason(const CudaProbe& probe);

}  // namespace monomoe::layer
