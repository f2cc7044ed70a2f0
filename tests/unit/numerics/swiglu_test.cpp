// Contract N3: the exponential's error, the clamp's asymmetry, the ends of the range, and a digest that pins every bit.
#include "numerics/swiglu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace monomoe {
namespace {

constexpr float kSwigluInfinity = std::numeric_limits<float>::infinity();

double ulps(float got, double exact) {
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(got - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(Exponential, StaysWithinOneUlpOfTheExactValue) {
  double worst = 0;
  for (std::uint32_t bits = 0; bits < float_bits(103.0f); bits += 997) {
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      const float x = bits_float(bits | sign);
      const double exact = std::exp(static_cast<double>(x));
      if (exact < 0x1.fffffep127) worst = std::max(worst, ulps(exp_contract(x), exact));
    }
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_GT(worst, 0.5) << "an error below one rounding means nothing was measured";
}

TEST(Exponential, EndsOfTheRange) {
  EXPECT_EQ(exp_contract(0.0f), 1.0f);
  EXPECT_EQ(exp_contract(-0.0f), 1.0f);
  EXPECT_LT(ulps(exp_contract(88.72283f), std::exp(static_cast<double>(88.72283f))), 1.0);
  EXPECT_EQ(exp_contract(88.722839f), kSwigluInfinity);
  for (float x : {89.0f, 200.0f, 1e30f, kSwigluInfinity}) EXPECT_EQ(exp_contract(x), kSwigluInfinity) << x;
  EXPECT_EQ(exp_contract(-103.9f), 0x1p-149f);
  for (float x : {-104.0f, -200.0f, -1e30f, -kSwigluInfinity}) EXPECT_EQ(float_bits(exp_contract(x)), 0u) << x;
  EXPECT_TRUE(std::isnan(exp_contract(std::nanf(""))));
}

TEST(Silu, KnownValues) {
  EXPECT_EQ(float_bits(silu(0.0f)), 0u);
  EXPECT_EQ(float_bits(silu(-0.0f)), 0x80000000u);
  EXPECT_EQ(silu(200.0f), 200.0f);
  EXPECT_EQ(float_bits(silu(-200.0f)), 0x80000000u) << "the exponential overflows, so the quotient is -0";
  EXPECT_EQ(silu(kSwigluInfinity), kSwigluInfinity);
  EXPECT_TRUE(std::isnan(silu(-kSwigluInfinity)));
  EXPECT_TRUE(std::isnan(silu(std::nanf(""))));
  EXPECT_LT(silu(-88.0f), 0.0f);
  EXPECT_NEAR(silu(-88.0f) / -5.328e-37, 1.0, 1e-3);
}

TEST(Silu, StaysCloseToTheExactFunction) {
  double worst = 0;
  for (float x = -80.0f; x < 80.0f; x += 0.00137f) {
    const double exact = x / (1 + std::exp(-static_cast<double>(x)));
    if (exact != 0) worst = std::max(worst, ulps(silu(x), exact));
  }
  EXPECT_LT(worst, 2.5);
}

TEST(Swiglu, GoldenValues) {
  EXPECT_NEAR(swiglu(2.0f, 0.5f, kSwigluInfinity), 0.880797, 1e-6);
  EXPECT_EQ(swiglu(0.0f, 5.0f, 10.0f), 0.0f);
  EXPECT_EQ(float_bits(swiglu(-200.0f, -3.0f, 10.0f)), 0u) << "-0 times a negative";
}

TEST(Swiglu, TheGateIsClampedFromAboveOnly) {
  EXPECT_EQ(swiglu(50.0f, 1.0f, 10.0f), silu(10.0f));
  EXPECT_EQ(swiglu(-50.0f, 1.0f, 10.0f), silu(-50.0f));
  EXPECT_NE(silu(-50.0f), silu(-10.0f));
  EXPECT_EQ(swiglu(-12.0f, 1.0f, 10.0f), silu(-12.0f));
  EXPECT_EQ(swiglu(10.0f, 1.0f, 10.0f), silu(10.0f));
  EXPECT_EQ(swiglu(50.0f, 1.0f, kSwigluInfinity), silu(50.0f)) << "infinity means no clamp";
}

TEST(Swiglu, TheUpProjectionIsClampedOnBothSides) {
  const float s = silu(2.0f);
  EXPECT_EQ(swiglu(2.0f, 50.0f, 10.0f), s * 10.0f);
  EXPECT_EQ(swiglu(2.0f, -50.0f, 10.0f), s * -10.0f);
  EXPECT_EQ(swiglu(2.0f, -9.5f, 10.0f), s * -9.5f);
  EXPECT_EQ(swiglu(2.0f, -50.0f, kSwigluInfinity), s * -50.0f);
}

TEST(Swiglu, NaNPassesTheClamp) {
  EXPECT_TRUE(std::isnan(swiglu(std::nanf(""), 1.0f, 10.0f)));
  EXPECT_TRUE(std::isnan(swiglu(1.0f, std::nanf(""), 10.0f)));
  EXPECT_TRUE(std::isnan(swiglu(-kSwigluInfinity, 1.0f, 10.0f)));
  EXPECT_EQ(swiglu(kSwigluInfinity, kSwigluInfinity, 10.0f), silu(10.0f) * 10.0f) << "an overflow upstream is clamped like any large value";
}

// FNV-1a over fixed sweeps. A changed constant or operation order is a contract change and shows here.
constexpr std::uint64_t kSweepDigest = 17948111898349713361ull;

TEST(Swiglu, EveryBitIsPinned) {
  std::uint64_t digest = 14695981039346656037ull;
  for (std::uint32_t i = 0; i < 4000000; ++i) {
    const float gate = -110.0f + 0.000055f * static_cast<float>(i);
    const float up = static_cast<float>(static_cast<int>(i % 257) - 128) * 0.173f;
    digest = (digest ^ float_bits(swiglu(gate, up, i % 3 ? 10.0f : kSwigluInfinity))) * 1099511628211ull;
  }
  EXPECT_EQ(digest, kSweepDigest);
}

// Every fp32 where the reduced argument is largest and the high coefficients weigh most. The last bits of the two highest coefficients
// are too small to show even here; a change in their upper 16 bits does.
TEST(Exponential, EveryBitIsPinnedWhereThePolynomialIsWorst) {
  std::uint64_t digest = 14695981039346656037ull;
  for (std::uint32_t bits = float_bits(0.32f); bits < float_bits(0.3465f); ++bits) {
    digest = (digest ^ float_bits(exp_contract(bits_float(bits)))) * 1099511628211ull;
    digest = (digest ^ float_bits(exp_contract(-bits_float(bits)))) * 1099511628211ull;
  }
  EXPECT_EQ(digest, 8443807051161369211ull);
}

TEST(Swiglu, ALoopGivesTheBitsOfSingleCalls) {
  std::vector<float> gate(1003), up(1003), loop(1003);
  for (int i = 0; i < 1003; ++i) {
    gate[i] = 0.21f * static_cast<float>(i - 500);
    up[i] = 0.037f * static_cast<float>(i - 400);
  }
  for (int i = 0; i < 1003; ++i) loop[i] = swiglu(gate[i], up[i], 10.0f);
  for (int i = 0; i < 1003; ++i) {
    volatile float g = gate[i], u = up[i];
    ASSERT_EQ(float_bits(loop[i]), float_bits(swiglu(g, u, 10.0f))) << i;
  }
}

}  // namespace
}  // namespace monomoe
