// FP4 weights as e4m3 codes: every nibble with every scale, the choice of the shift, and what the conversion costs.
#include "numerics/weight_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nearest_code.h"

namespace monomoe {
namespace {

double e2m1_value(int nibble) {
  const double magnitude = test_support::e2m1_values()[nibble & 7];
  return nibble & 8 ? -magnitude : magnitude;
}

TEST(WeightCodes, Nvfp4IsTheExactProductRoundedOnce) {
  for (int shift : {-600, -149, -126, -20, -12, -3, -1, 0, 1, 2, 5, 9, 18, 100, 127, 300}) {
    for (int nibble = 0; nibble < 16; ++nibble) {
      for (int scale = 0; scale < 256; ++scale) {
        const auto got = e4m3_from_nvfp4(static_cast<std::uint8_t>(nibble), static_cast<std::uint8_t>(scale), shift);
        if ((scale & 0x7F) == 0x7F) {
          ASSERT_EQ(got, 0x7F);
          continue;
        }
        const double block_scale = test_support::e4m3_values()[scale & 0x7F] * (scale & 0x80 ? -1 : 1);
        const double exact = std::ldexp(e2m1_value(nibble) * block_scale, shift);
        ASSERT_EQ(got, test_support::nearest_e4m3(exact)) << nibble << ' ' << scale << ' ' << shift;
      }
    }
  }
}

TEST(WeightCodes, Mxfp4IsTheExactProductRoundedOnce) {
  for (int shift : {-600, -254, -130, -127, -9, -3, 0, 1, 6, 100, 127, 133, 254, 600}) {
    for (int nibble = 0; nibble < 16; ++nibble) {
      for (int code = 0; code < 255; ++code) {
        const double exact = std::ldexp(e2m1_value(nibble), code - 127 + shift);
        ASSERT_EQ(e4m3_from_mxfp4(static_cast<std::uint8_t>(nibble), static_cast<std::uint8_t>(code), shift), test_support::nearest_e4m3(exact))
            << nibble << ' ' << code << ' ' << shift;
      }
      ASSERT_EQ(e4m3_from_mxfp4(static_cast<std::uint8_t>(nibble), 255, shift), 0x7F);
    }
  }
}

TEST(WeightCodes, NegativeZeroIsKept) {
  EXPECT_EQ(e4m3_from_nvfp4(8, 0x38, 0), 0x80);
  EXPECT_EQ(e4m3_from_mxfp4(8, 127, 0), 0x80);
  EXPECT_EQ(e4m3_from_mxfp4(9, 100, 0), 0x80) << "-0.5 * 2^-27 underflows to -0";
}

TEST(WeightCodes, ShiftIsTheLargestThatFits) {
  EXPECT_EQ(nvfp4_shift(448.0), 0);
  EXPECT_EQ(nvfp4_shift(std::nextafter(448.0, 500.0)), -1);
  EXPECT_EQ(nvfp4_shift(224.0), 1);
  EXPECT_EQ(nvfp4_shift(6.0 * 448.0), -3);
  EXPECT_EQ(nvfp4_shift(0x1p-10), 18);
  EXPECT_EQ(nvfp4_shift(1.0), 8);
  EXPECT_EQ(mxfp4_shift(6.0 * 0x1p127), -121);
  EXPECT_EQ(mxfp4_shift(0x1p-128), 136);
  EXPECT_EQ(nvfp4_shift(0.0), 0);
  EXPECT_EQ(nvfp4_shift(std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(nvfp4_shift(std::nan("")), 0);
}

TEST(WeightCodes, TheShiftKeepsEveryProductInsideAndUsesTheTop) {
  for (int magnitude = 1; magnitude < 8; ++magnitude) {
    for (int scale = 1; scale < 127; ++scale) {
      const double product = test_support::e2m1_values()[magnitude] * test_support::e4m3_values()[scale];
      const int s = nvfp4_shift(product);
      ASSERT_LE(std::ldexp(product, s), 448.0);
      ASSERT_GT(std::ldexp(product, s + 1), 448.0);
      ASSERT_EQ(mxfp4_shift(product), s);
      ASSERT_LE(e4m3_from_nvfp4(static_cast<std::uint8_t>(magnitude), static_cast<std::uint8_t>(scale), s), 0x7E);
    }
  }
}

TEST(WeightCodes, WhatNvfp4CostsWithoutAShift) {
  int exact = 0, rounded = 0, saturated = 0;
  double worst = 0;
  for (int magnitude = 1; magnitude < 8; ++magnitude) {
    for (int scale = 1; scale < 127; ++scale) {
      const double product = test_support::e2m1_values()[magnitude] * test_support::e4m3_values()[scale];
      const double got = e4m3_decode(e4m3_from_nvfp4(static_cast<std::uint8_t>(magnitude), static_cast<std::uint8_t>(scale), 0));
      if (product > 448.0) {
        ++saturated;
        EXPECT_EQ(got, 448.0);
      } else if (got == product) {
        ++exact;
      } else {
        ++rounded;
        if (product >= 0x1p-6) worst = std::max(worst, std::fabs(got / product - 1));
      }
    }
  }
  EXPECT_EQ(exact, 607);
  EXPECT_EQ(rounded, 212);
  EXPECT_EQ(saturated, 63);
  EXPECT_NEAR(worst, 0.0476, 0.0005) << "where the result is a normal code; subnormal results lose more";
}

TEST(WeightCodes, PowerOfTwoScalesAreExactInsideTheWindow) {
  for (int nibble = 0; nibble < 16; ++nibble) {
    for (int code = 127 - 8; code <= 127 + 6; ++code) {
      const auto got = e4m3_from_mxfp4(static_cast<std::uint8_t>(nibble), static_cast<std::uint8_t>(code), 0);
      EXPECT_EQ(e4m3_decode(got), std::ldexp(e2m1_value(nibble), code - 127));
    }
  }
}

}  // namespace
}  // namespace monomoe
