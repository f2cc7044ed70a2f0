// What the GPU's tensor cores reach in a large product of cuBLASLt.
#pragma once

#include "base/result.hpp"
#include "cuda/bench/bench.hpp"

namespace monomoe::cuda {

// On the current GPU: FP8 (e4m3) 8192^3, fast accumulation, bf16 result, random operands; the median of several. Wait until the GPU is idle.
Result<GemmRate> measure_gemm(int multiprocessors);

}  // namespace monomoe::cuda
