// Our conversions against NVIDIA's own headers, where a CUDA toolkit is installed.
#include <gtest/gtest.h>

#include <cmath>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"

#if __has_include(<cuda_fp8.h>)
#define MONOMOE_TEST_CUDA_FP8
#include <cuda_fp8.h>
#endif
#if __has_include(<cuda_fp4.h>)
#define MONOMOE_TEST_CUDA_FP4
#include <cuda_fp4.h>
#endif

namespace monomoe {
namespace {

constexpr std::uint64_t kAllFloats = 1ull << 32;

TEST(CudaHeaders, E4m3) {
#ifdef MONOMOE_TEST_CUDA_FP8
  for (std::uint64_t bits = 0; bits < kAllFloats; bits += 1013) {
    const float value = bits_float(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(e4m3_encode(value), __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)) << std::hexfloat << value;
  }
  for (int code = 0; code < 256; ++code) {
    __nv_fp8_e4m3 theirs;
    theirs.__x = static_cast<__nv_fp8_storage_t>(code);
    const float ours = e4m3_decode(static_cast<std::uint8_t>(code));
    if (is_nan(ours)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(theirs))) << code;
    } else {
      EXPECT_EQ(float_bits(ours), float_bits(static_cast<float>(theirs))) << code;
    }
  }
#else
  GTEST_SKIP() << "cuda_fp8.h was not found: e4m3 is NOT compared with NVIDIA's header on this machine";
#endif
}

TEST(CudaHeaders, E2m1) {
#ifdef MONOMOE_TEST_CUDA_FP4
  for (std::uint64_t bits = 0; bits < kAllFloats; bits += 1013) {
    const float value = bits_float(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(e2m1_encode(value), __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest)) << std::hexfloat << value;
  }
  for (int code = 0; code < 16; ++code) {
    __nv_fp4_e2m1 theirs;
    theirs.__x = static_cast<__nv_fp4_storage_t>(code);
    EXPECT_EQ(float_bits(e2m1_decode(static_cast<std::uint8_t>(code))), float_bits(static_cast<float>(theirs))) << code;
  }
#else
  GTEST_SKIP() << "cuda_fp4.h was not found: e2m1 is NOT compared with NVIDIA's header on this machine";
#endif
}

TEST(CudaHeaders, E8m0) {
#ifdef MONOMOE_TEST_CUDA_FP4  // the E8M0 conversions came with the release that brought cuda_fp4.h
  for (int code = 0; code < 256; ++code) {
    const float ours = e8m0_decode(static_cast<std::uint8_t>(code));
    const float theirs = bf16_decode(__nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(code)).x);
    if (code == 255) {
      EXPECT_TRUE(std::isnan(theirs));
      continue;
    }
    EXPECT_EQ(ours, theirs) << code;
    EXPECT_EQ(e8m0_encode(ours), __nv_cvt_float_to_e8m0(ours, __NV_SATFINITE, cudaRoundZero)) << code;
  }
#else
  GTEST_SKIP() << "the toolkit has no E8M0 conversions: e8m0 is NOT compared with NVIDIA's header on this machine";
#endif
}

}  // namespace
}  // namespace monomoe
