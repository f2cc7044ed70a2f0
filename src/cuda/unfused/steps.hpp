// The launches of a call on the unfused path, in order. A kernel that waits for another rank is one thread block, so that the kernels it
// waits for find room on the same GPU; all others wait for nothing. Once a rank has given up, each of its kernels leaves at once.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.hpp"
#include "cuda/unfused/params.h"

namespace monomoe::cuda::unfused {

struct Step {
  Result<void> (*prepare)();  // once per device, before any launch on it
  // thread_blocks: the rank's share of the multiprocessors.
  Result<void> (*launch)(const UnfusedParams& params, int thread_blocks, cudaStream_t stream);
};

extern const Step kAwaitDrained;  // waits
extern const Step kDispatch;
extern const Step kAwaitArrived;  // waits
extern const Step kListRoutes;
extern const Step kGemm1;
extern const Step kActivate;
extern const Step kGemm2;
extern const Step kSend;
extern const Step kAwaitContributions;  // waits
extern const Step kCombine;

inline constexpr const Step* kSteps[] = {&kAwaitDrained, &kDispatch, &kAwaitArrived, &kListRoutes,         &kGemm1,
                                         &kActivate,     &kGemm2,    &kSend,         &kAwaitContributions, &kCombine};
inline constexpr const char* kStepNames[] = {"await drained", "dispatch", "await arrived", "list routes",         "gemm1",
                                             "activation",    "gemm2",    "send",          "await contributions", "combine"};
static_assert(sizeof(kSteps) / sizeof(kSteps[0]) == sizeof(kStepNames) / sizeof(kStepNames[0]));

}  // namespace monomoe::cuda::unfused
