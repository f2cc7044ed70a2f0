// How a call on the CUDA backend becomes launches. All give the same bits; every rank of a workspace has the same one.
#pragma once

#include <cstdint>

namespace monomoe::cuda {

enum class LaunchVariant : uint8_t {
  kOne,      // the whole call in one launch
  kSplit,    // the same kernel twice: up to GEMM1, from GEMM2 on
  kUnfused,  // src/cuda/unfused: one simple kernel a step
};

}  // namespace monomoe::cuda
