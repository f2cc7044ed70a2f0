// Contract N1, N4, N6: the group scale, the codes and the route weight.
#include "numerics/activation_quant.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "nearest_code.h"

namespace monomoe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Group {
  std::array<std::uint8_t, kGroupChannels> codes;
  float scale;
};

Group quantise(const std::vector<float>& x) {
  Group g;
  g.codes.fill(0xAA);
  g.scale = -1;
  quantise_group(x.data(), static_cast<int>(x.size()), g.codes.data(), &g.scale);
  return g;
}

TEST(ActivationQuant, AGroupWhoseLargestIs448KeepsItsValues) {
  const Group g = quantise({448, -17, 0.0f, -0.0f, 1.5f});
  EXPECT_EQ(g.scale, 1.0f);
  EXPECT_EQ(g.codes[0], 0x7E);
  EXPECT_EQ(e4m3_decode(g.codes[1]), -16.0f);
  EXPECT_EQ(g.codes[2], 0x00);
  EXPECT_EQ(g.codes[3], 0x80);
  EXPECT_EQ(e4m3_decode(g.codes[4]), 1.5f);
  EXPECT_EQ(g.codes[5], 0xAA) << "a short group must not be written past its end";
}

TEST(ActivationQuant, TheScaleIsContinuous) {
  EXPECT_EQ(float_bits(quantise({3.0f}).scale), float_bits(3.0f / 448.0f));
  EXPECT_EQ(quantise({-3.0f, 1.0f}).codes[0], 0xFE) << "the largest magnitude is always the largest code";
}

TEST(ActivationQuant, ZerosAndTinyGroupsUseTheFloor) {
  const Group zeros = quantise(std::vector<float>(kGroupChannels, 0.0f));
  EXPECT_EQ(float_bits(zeros.scale), float_bits(1e-10f / 448.0f));
  for (std::uint8_t code : zeros.codes) EXPECT_EQ(code, 0);
  const Group tiny = quantise({1e-11f});
  EXPECT_EQ(float_bits(tiny.scale), float_bits(1e-10f / 448.0f));
  EXPECT_EQ(e4m3_decode(tiny.codes[0]), 44.0f) << "44.8 rounds to 44";
  EXPECT_EQ(quantise({0x1p-149f}).codes[0], 0);
}

TEST(ActivationQuant, ANonFiniteGroupHasNoCodes) {
  for (float bad : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("1")}) {
    std::vector<float> x(kGroupChannels, 3.0f);
    x[77] = bad;
    const Group g = quantise(x);
    EXPECT_EQ(float_bits(g.scale), 0x7FFFFFFFu);
    for (std::uint8_t code : g.codes) EXPECT_EQ(code, 0);
  }
  const ActivationScale s = activation_scale(1.0f, false);
  EXPECT_EQ(float_bits(s.scale), 0x7FFFFFFFu);
  EXPECT_EQ(s.inverse, 0.0f);
}

// Double holds the product exactly and enough bits that rounding a quotient twice equals rounding it once.
TEST(ActivationQuant, EveryOperationIsRoundedOnce) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> x(kGroupChannels);
    const float spread = std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
    float m = 1e-10f;
    for (float& v : x) {
      v = normal(random) * spread;
      m = std::max(m, std::fabs(v));
    }
    const Group g = quantise(x);
    const float scale = static_cast<float>(static_cast<double>(m) / 448.0);
    const float inverse = static_cast<float>(448.0 / static_cast<double>(m));
    ASSERT_EQ(float_bits(g.scale), float_bits(scale));
    for (int i = 0; i < kGroupChannels; ++i) {
      const float scaled = static_cast<float>(static_cast<double>(x[i]) * static_cast<double>(inverse));
      ASSERT_EQ(g.codes[i], test_support::nearest_e4m3(scaled));
    }
  }
}

// Ratios that fall on a tie between two codes: there x * (448 / m) and the tempting x / scale give different codes, and the first is
// the contract. m = 7 j makes 448 / m inexact and x / m * 448 = tie exactly.
TEST(ActivationQuant, MultipliesByTheInverseAndDoesNotDivide) {
  int division_differs = 0;
  for (int j = 1; j < 64; j += 2) {
    for (int tie = 17; tie < 32; tie += 2) {
      const float m = 7.0f * static_cast<float>(j) * 8, x = static_cast<float>(tie * j);
      const Group g = quantise({m, x});
      const float inverse = static_cast<float>(448.0 / static_cast<double>(m));
      const float scale = static_cast<float>(static_cast<double>(m) / 448.0);
      ASSERT_EQ(g.codes[1], test_support::nearest_e4m3(static_cast<float>(static_cast<double>(x) * static_cast<double>(inverse))));
      division_differs += g.codes[1] != test_support::nearest_e4m3(static_cast<float>(static_cast<double>(x) / static_cast<double>(scale)));
    }
  }
  EXPECT_GT(division_differs, 0) << "both orders agree on this data, so it shows nothing";
}

TEST(ActivationQuant, ExtremeMagnitudesDoNotOverflow) {
  const float largest = std::numeric_limits<float>::max();
  const Group g = quantise({largest, -largest / 2});
  EXPECT_EQ(float_bits(g.scale), float_bits(static_cast<float>(static_cast<double>(largest) / 448.0)));
  EXPECT_EQ(g.codes[0], 0x7E);
  EXPECT_EQ(e4m3_decode(g.codes[1]), -224.0f);
}

TEST(RouteScale, ProductRoundedOnce) {
  EXPECT_EQ(route_scale(0.5f, -0.25f), -0.125f) << "negative weights are legal";
  EXPECT_EQ(float_bits(route_scale(0.5f, -0.0f)), 0x80000000u);
  EXPECT_EQ(float_bits(route_scale(1.1f, 0.3f)), float_bits(static_cast<float>(static_cast<double>(1.1f) * 0.3f)));
}

TEST(RouteScale, AnythingNotFiniteIsTheOneNaN) {
  for (float weight : {kInfinity, -kInfinity, std::nanf(""), -std::nanf("7")}) {
    EXPECT_EQ(float_bits(route_scale(1.0f, weight)), 0x7FFFFFFFu);
    EXPECT_EQ(float_bits(route_scale(0.0f, weight)), 0x7FFFFFFFu);
  }
  EXPECT_EQ(float_bits(route_scale(-fp32_nan(), 0.5f)), 0x7FFFFFFFu);
  EXPECT_EQ(float_bits(route_scale(1e30f, 1e30f)), 0x7FFFFFFFu) << "an overflowing product marks the row too";
}

}  // namespace
}  // namespace monomoe
