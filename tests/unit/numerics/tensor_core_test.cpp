// The tensor core's step against a second model in double arithmetic, against sums worked out by hand, and the order of K.
#include "numerics/tensor_core.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "nearest_code.h"

namespace monomoe {
namespace {

using Codes = std::array<std::uint8_t, kStepK>;

// The rule with frexp, ldexp and trunc: everything in it is exact in double.
double model_step(double acc, const std::uint8_t* a, const std::uint8_t* b) {
  struct Term {
    double value;
    int exponent;
  };
  const auto exponent_of = [](std::uint8_t code) {
    const double magnitude = test_support::e4m3_values()[code & 0x7F];
    return magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude);
  };
  std::vector<Term> terms;
  if (acc != 0) terms.push_back({acc, std::ilogb(acc)});
  for (int k = 0; k < kStepK; ++k) {
    if ((a[k] & 0x7F) == 0x7F || (b[k] & 0x7F) == 0x7F) return std::nan("");
    const double product = test_support::e4m3_values()[a[k] & 0x7F] * test_support::e4m3_values()[b[k] & 0x7F];
    const bool negative = (a[k] ^ b[k]) & 0x80;
    if (product != 0) terms.push_back({negative ? -product : product, exponent_of(a[k]) + exponent_of(b[k])});
  }
  int largest = std::numeric_limits<int>::min();
  for (const Term& t : terms) largest = std::max(largest, t.exponent);
  double sum = 0;
  for (const Term& t : terms) sum += std::ldexp(std::trunc(std::ldexp(t.value, 13 - largest)), largest - 13);
  if (sum == 0) return 0.0;
  const int unit = std::ilogb(sum) - 13;
  return std::ldexp(std::trunc(std::ldexp(sum, -unit)), unit);
}

// All codes; mid range; small and subnormal; a wide mixture.
std::uint8_t draw(int distribution, std::mt19937& random) {
  for (;;) {
    const std::uint32_t r = random(), sign = (r >> 8) & 0x80;
    std::uint32_t code = r & 0xFF;
    if (distribution == 1) code = sign | (0x28 + r % 0x20);
    if (distribution == 2) code = sign | (r % 0x30);
    if (distribution == 3) code = sign | ((r >> 20) % 4 ? r % 0x20 : 0x50 + r % 0x2E);
    if ((code & 0x7F) != 0x7F) return static_cast<std::uint8_t>(code);
  }
}

class Distribution : public ::testing::TestWithParam<int> {};

TEST_P(Distribution, ChainsAgreeWithTheDoubleModel) {
  std::mt19937 random(static_cast<std::uint32_t>(GetParam()) + 5);
  int truncated = 0;
  for (int chain = 0; chain < 8000; ++chain) {
    float acc = 0;
    for (int step = 0; step < 4; ++step) {
      Codes a, b;
      double exact = acc;
      for (int k = 0; k < kStepK; ++k) {
        a[k] = draw(GetParam(), random);
        b[k] = draw(GetParam(), random);
        exact += static_cast<double>(e4m3_decode(a[k])) * e4m3_decode(b[k]);
      }
      const float want = static_cast<float>(model_step(acc, a.data(), b.data()));
      acc = tensor_core_step(acc, a.data(), b.data());
      ASSERT_EQ(float_bits(acc), float_bits(want)) << "chain " << chain << " step " << step;
      truncated += acc != exact;
    }
  }
  EXPECT_GT(truncated, 5000) << "data that never loses a bit would test nothing";
}
INSTANTIATE_TEST_SUITE_P(TensorCore, Distribution, ::testing::Values(0, 1, 2, 3));

TEST(TensorCore, ArbitraryAccumulatorsAgreeWithTheDoubleModel) {
  std::mt19937 random(99);
  for (int trial = 0; trial < 20000; ++trial) {
    Codes a, b;
    for (int k = 0; k < kStepK; ++k) {
      a[k] = random() % 3 ? 0 : draw(0, random);
      b[k] = draw(0, random);
    }
    const float acc = std::ldexp(static_cast<float>(static_cast<std::int32_t>(random())), static_cast<int>(random() % 60) - 60);
    ASSERT_EQ(float_bits(tensor_core_step(acc, a.data(), b.data())), float_bits(static_cast<float>(model_step(acc, a.data(), b.data()))));
  }
}

float step_of(float acc, std::vector<std::pair<float, float>> products) {
  Codes a{}, b{};
  for (std::size_t k = 0; k < products.size(); ++k) {
    a[k] = e4m3_encode(products[k].first);
    b[k] = e4m3_encode(products[k].second);
  }
  return tensor_core_step(acc, a.data(), b.data());
}

TEST(TensorCore, SumsByHand) {
  // 448 * 448 = 200704 has exponent 8 + 8, so terms are cut to multiples of 8 and the sum, from 2^17 on, to multiples of 16.
  EXPECT_EQ(step_of(0, {{448, 448}, {7, 1}}), 200704.0f);
  EXPECT_EQ(step_of(0, {{448, 448}, {8, 1}}), 200704.0f);
  EXPECT_EQ(step_of(0, {{448, 448}, {16, 1}}), 200720.0f);
  EXPECT_EQ(step_of(0, {{448, 448}, {8, 1}, {8, 1}}), 200720.0f) << "the sum is exact before it is cut";
  EXPECT_EQ(step_of(0, {{448, 448}, {-9, 1}}), 200688.0f) << "toward zero twice";
  EXPECT_EQ(step_of(0, {{-448, 448}, {9, 1}}), -200688.0f) << "the sign does not matter";
  EXPECT_EQ(step_of(200704.0f, {{7, 1}}), 200704.0f) << "the accumulator is a term like any other";
  EXPECT_EQ(step_of(200704.0f, {{15, 1}}), 200704.0f) << "here its own exponent is 17";
}

TEST(TensorCore, AProductKeepsItsUnnormalisedExponent) {
  // 1.75 * 1.75 counts as exponent 0 although it is above 2, so two terms of 2^-13 survive.
  EXPECT_EQ(step_of(0, {{1.75f, 1.75f}, {0x1p-6f, 0x1p-7f}, {0x1p-6f, 0x1p-7f}}), 3.0625f + 0x1p-12f);
  EXPECT_EQ(step_of(0, {{2.0f, 1.75f}, {0x1p-6f, 0x1p-7f}, {0x1p-6f, 0x1p-7f}}), 3.5f);
}

TEST(TensorCore, ZerosAndCancellation) {
  EXPECT_EQ(float_bits(step_of(0.0f, {})), 0u);
  EXPECT_EQ(float_bits(step_of(-0.0f, {{-0.0f, 1}})), 0u) << "zero is always +0";
  EXPECT_EQ(float_bits(step_of(0.0f, {{3, 5}, {-3, 5}})), 0u);
  EXPECT_EQ(float_bits(step_of(-15.0f, {{3, 5}})), 0u);
  EXPECT_EQ(step_of(1.0f + 0x1p-13f, {}), 1.0f + 0x1p-13f);
  EXPECT_EQ(step_of(1.0f + 0x1p-14f, {}), 1.0f) << "an accumulator loses what the hardware could not hold";
  EXPECT_EQ(step_of(0, {{0x1p-9f, 0x1p-9f}}), 0x1p-18f);
  Codes largest;
  largest.fill(0x7E);
  EXPECT_EQ(tensor_core_step(0, largest.data(), largest.data()), 32.0f * 448 * 448);
}

TEST(TensorCore, AccumulatorsAtTheEndsOfTheRange) {
  EXPECT_EQ(step_of(0x1p-149f, {}), 0x1p-149f);
  EXPECT_EQ(step_of(-0x1.8p-140f, {}), -0x1.8p-140f);
  EXPECT_EQ(step_of(0x1p-126f, {}), 0x1p-126f);
  EXPECT_EQ(step_of(0x1p-140f, {{1, 1}}), 1.0f);
  EXPECT_EQ(step_of(0x1p127f, {{448, 448}}), 0x1p127f);
}

TEST(TensorCore, NaNGivesTheOneNaN) {
  for (int k = 0; k < kStepK; ++k) {
    for (int nan : {0x7F, 0xFF}) {
      Codes a{}, b{};
      a[k] = static_cast<std::uint8_t>(nan);
      EXPECT_EQ(float_bits(tensor_core_step(1.0f, a.data(), b.data())), 0x7FFFFFFFu) << "even against a zero";
      EXPECT_EQ(float_bits(tensor_core_step(1.0f, b.data(), a.data())), 0x7FFFFFFFu);
    }
  }
  EXPECT_EQ(float_bits(step_of(std::nanf(""), {})), 0x7FFFFFFFu);
  EXPECT_EQ(float_bits(step_of(std::numeric_limits<float>::infinity(), {})), 0x7FFFFFFFu);
}

TEST(KOrder, PhysicalAndLogicalAreInverse) {
  std::set<int> seen;
  for (int k = 0; k < kPromotionK; ++k) {
    seen.insert(permuted_k(k));
    EXPECT_EQ(logical_k(permuted_k(k)), k);
    EXPECT_EQ(permuted_k(k) / kStepK, (k % 32) / 8) << "step i takes the k with (k mod 32) div 8 = i";
  }
  EXPECT_EQ(seen.size(), 128u);
  EXPECT_EQ(permuted_k(0), 0);
  EXPECT_EQ(permuted_k(4), 16);
  EXPECT_EQ(permuted_k(8), 32);
  EXPECT_EQ(permuted_k(32), 4);
  EXPECT_EQ(logical_k(32 * 2 + 16 * 1 + 4 * 3 + 2), 32 * 3 + 8 * 2 + 4 * 1 + 2);
}

TEST(KOrder, ABlockIsFourStepsInOrder) {
  std::array<std::uint8_t, kPromotionK> a{}, b{};
  for (int p = 0; p < kPromotionK; ++p) b[p] = e4m3_encode(1.0f);
  // 2^8 first, then small terms that later steps drop; taken the other way round they would have been kept.
  a[0] = e4m3_encode(256.0f);
  for (int p = 96; p < 128; ++p) a[p] = e4m3_encode(0x1p-6f);
  EXPECT_EQ(tensor_core_block(a.data(), b.data()), 256.0f);
  a[0] = 0;
  a[127] = e4m3_encode(256.0f);
  for (int p = 0; p < 32; ++p) a[p] = e4m3_encode(0x1p-6f);
  for (int p = 96; p < 127; ++p) a[p] = 0;
  EXPECT_EQ(tensor_core_block(a.data(), b.data()), 256.5f);
}

}  // namespace
}  // namespace monomoe
