// One correctly rounded (nearest even) fp32 operation each. The compiler may neither fuse nor reorder them: host code is built with
// -ffp-contract=off, device code uses the intrinsics and must be built without -ftz=true.
#pragma once

#include "base/host_device.h"

namespace monomoe {

MONOMOE_HD constexpr float add_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fadd_rn(a, b);
#endif
  return a + b;
}

MONOMOE_HD constexpr float mul_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fmul_rn(a, b);
#endif
  return a * b;
}

MONOMOE_HD constexpr float div_rn(float a, float b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __fdiv_rn(a, b);
#endif
  return a / b;
}

// Not constexpr: not every supported compiler folds the builtin. Without FMA hardware it is a library call with the same bits.
MONOMOE_HD inline float fma_rn(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

}  // namespace monomoe
