// The row kernels of every width this machine has, bit for bit against numerics/.
#include <gtest/gtest.h>

#include <limits>

#include "unit/cpu/kernels_fixture.hpp"
#include "numerics/activation_quant.h"
#include "numerics/bf16.h"
#include "numerics/swiglu.h"

namespace monomoe::cpu::testing {
namespace {

constexpr float kNoLimit = std::numeric_limits<float>::infinity();

// A bf16 value of any size, or one around 1, by turns.
uint16_t draw_bf16(std::mt19937& random, bool wide) {
  const auto sign = static_cast<uint16_t>((random() & 1) << 15);
  const uint32_t exponent = wide ? random() % 255 : 118 + random() % 14;
  return static_cast<uint16_t>(sign | exponent << 7 | (random() & 0x7F));
}

struct Quantised {
  std::vector<uint8_t> codes;
  std::vector<float> scales;
};

Quantised expected_row(const std::vector<uint16_t>& x) {
  Quantised q{std::vector<uint8_t>(x.size()), std::vector<float>(x.size() / 128)};
  for (size_t block = 0; block < q.scales.size(); ++block) {
    float values[128];
    uint8_t logical[128];
    for (int k = 0; k < 128; ++k) values[k] = bf16_decode(x[block * 128 + k]);
    quantise_group(values, 128, logical, &q.scales[block]);
    for (int k = 0; k < 128; ++k) q.codes[block * 128 + permuted_k(k)] = logical[k];
  }
  return q;
}

TEST(QuantiseRow, EveryWidthGivesTheContract) {
  std::mt19937 random(1);
  for (bool wide : {false, true}) {
    std::vector<uint16_t> x(40 * 128);
    for (uint16_t& value : x) value = draw_bf16(random, wide);
    std::fill(x.begin(), x.begin() + 128, uint16_t{0});
    std::fill(x.begin() + 128, x.begin() + 256, uint16_t{0x8000});
    x[300] = 0x7F80, x[400] = 0xFFC1;
    std::fill(x.begin() + 512, x.begin() + 640, uint16_t{1});  // subnormal, below the smallest amax
    const Quantised wanted = expected_row(x);
    ASSERT_TRUE(is_nan(wanted.scales[2]) && is_nan(wanted.scales[3]));
    for (int bits : available_widths()) {
      Quantised found{std::vector<uint8_t>(x.size(), 0xEE), std::vector<float>(x.size() / 128, -1.0f)};
      kernels(bits).quantise_row(x.data(), static_cast<int64_t>(x.size()), found.codes.data(), found.scales.data());
      EXPECT_EQ(found.codes, wanted.codes) << bits;
      EXPECT_EQ(0, std::memcmp(found.scales.data(), wanted.scales.data(), wanted.scales.size() * 4)) << bits;
    }
  }
}

TEST(QuantiseRow, OneLargeChannelInEveryPosition) {
  for (int bits : available_widths()) {
    for (int k = 0; k < 128; ++k) {
      std::vector<uint16_t> x(128, 0x3F80);  // 1
      x[k] = 0xC2E0;                         // -112
      uint8_t codes[128];
      float scale;
      kernels(bits).quantise_row(x.data(), 128, codes, &scale);
      EXPECT_EQ(scale, 0.25f);
      for (int other = 0; other < 128; ++other) ASSERT_EQ(codes[permuted_k(other)], other == k ? 0xFE : 0x48) << bits << " bits, channel " << k;
    }
  }
}

struct Mid {
  std::vector<std::vector<uint8_t>> codes;
  std::vector<float> scales;
};

Mid run_swiglu(const Kernels& kernels, const std::vector<float>& sums, int64_t valid, float limit, const std::vector<float>& weights) {
  const auto count = static_cast<int64_t>(weights.size());
  Mid mid{std::vector<std::vector<uint8_t>>(count, std::vector<uint8_t>(128, 0xEE)), std::vector<float>(count, -1.0f)};
  std::vector<uint8_t*> codes;
  std::vector<float*> scales;
  for (int64_t n = 0; n < count; ++n) codes.push_back(mid.codes[n].data()), scales.push_back(&mid.scales[n]);
  kernels.swiglu_quantise(sums.data(), valid, limit, weights.data(), count, codes.data(), scales.data());
  return mid;
}

Mid expected_swiglu(const std::vector<float>& sums, int64_t valid, float limit, const std::vector<float>& weights) {
  Mid mid{std::vector<std::vector<uint8_t>>(weights.size(), std::vector<uint8_t>(128)), std::vector<float>(weights.size())};
  for (size_t token = 0; token < weights.size(); ++token) {
    float values[128] = {};
    for (int64_t row = 0; row < 256; ++row) {
      const GateUpRow place = gate_up_row(row / 128, row % 128);
      if (place.is_up || place.channel >= valid) continue;
      values[place.channel] = swiglu(sums[token * 256 + row], sums[token * 256 + row + 8], limit);
    }
    uint8_t logical[128];
    float scale;
    quantise_group(values, 128, logical, &scale);
    for (int k = 0; k < 128; ++k) mid.codes[token][permuted_k(k)] = logical[k];
    mid.scales[token] = route_scale(scale, weights[token]);
  }
  return mid;
}

TEST(SwigluQuantise, EveryWidthGivesTheContract) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> weights;
  for (int n = 0; n < 40; ++n) weights.push_back(normal(random));
  weights[3] = std::numeric_limits<float>::quiet_NaN();
  weights[4] = std::numeric_limits<float>::infinity();
  weights[5] = 0.0f;
  std::vector<float> sums(weights.size() * 256);
  for (size_t n = 0; n < sums.size(); ++n) sums[n] = normal(random) * std::ldexp(1.0f, static_cast<int>(n / 256) - 20);
  sums[10 * 256 + 77] = kNoLimit;
  sums[11 * 256 + 78] = -kNoLimit;
  sums[12 * 256] = std::numeric_limits<float>::quiet_NaN();
  std::fill(sums.begin() + 13 * 256, sums.begin() + 14 * 256, 0.0f);
  sums[14 * 256 + 1] = -89.5f, sums[14 * 256 + 2] = -104.0f, sums[14 * 256 + 3] = 3e38f;
  for (float limit : {kNoLimit, 10.0f, 0.5f}) {
    for (int64_t valid : {128, 96, 32, 1}) {
      const Mid wanted = expected_swiglu(sums, valid, limit, weights);
      for (int bits : available_widths()) {
        const Mid found = run_swiglu(kernels(bits), sums, valid, limit, weights);
        ASSERT_EQ(found.codes, wanted.codes) << bits << " bits, limit " << limit << ", " << valid << " channels";
        ASSERT_EQ(0, std::memcmp(found.scales.data(), wanted.scales.data(), wanted.scales.size() * 4)) << bits;
      }
    }
  }
}

// A padded channel is an exact zero whatever its sum holds: neither its size nor a NaN in it reaches the scale.
TEST(SwigluQuantise, PaddedChannelsHaveNoInfluence) {
  std::vector<float> sums(256, 1.0f);
  const Mid wanted = run_swiglu(kernels(128), sums, 40, kNoLimit, {1.0f});
  for (int64_t row = 0; row < 256; ++row) {
    if (gate_up_row(row / 128, row % 128).channel >= 40) sums[row] = row % 2 == 0 ? 1e30f : std::numeric_limits<float>::quiet_NaN();
  }
  for (int bits : available_widths()) {
    const Mid found = run_swiglu(kernels(bits), sums, 40, kNoLimit, {1.0f});
    EXPECT_EQ(found.codes, wanted.codes);
    EXPECT_EQ(found.scales, wanted.scales);
    for (int k = 0; k < 128; ++k) EXPECT_EQ(found.codes[0][permuted_k(k)], k < 40 ? 0x7E : 0x00);
  }
}

TEST(RoundContribution, EveryWidthGivesTheContract) {
  std::mt19937 random(3);
  std::vector<float> sums(256);
  for (float& value : sums) value = bits_float(random());
  sums[0] = bits_float(0x3F808000), sums[1] = bits_float(0x3F818000), sums[2] = bits_float(0x7F7FFFFF), sums[3] = bits_float(0xFFFFFFFF), sums[4] = -0.0f;
  for (int bits : available_widths()) {
    for (int64_t rows : {128, 256}) {
      std::vector<uint16_t> y(256, 0xEEEE);
      kernels(bits).round_contribution(sums.data(), rows, y.data());
      for (int64_t r = 0; r < 256; ++r) ASSERT_EQ(y[r], r < rows ? bf16_encode(sums[r]) : 0xEEEE) << bits << " bits, row " << r;
      EXPECT_EQ(y[0], 0x3F80);
      EXPECT_EQ(y[1], 0x3F82);
      EXPECT_EQ(y[2], 0x7F80);
      EXPECT_EQ(y[3], kBf16NaN);
      EXPECT_EQ(y[4], 0x8000);
    }
  }
}

TEST(CombineRow, SumsInTheGivenOrderAndRoundsOnce) {
  std::mt19937 random(4);
  std::vector<std::vector<uint16_t>> rows(9, std::vector<uint16_t>(384));
  for (auto& row : rows) {
    for (uint16_t& value : row) value = draw_bf16(random, false);
  }
  rows[2][5] = 0xFFC0;
  std::vector<const uint16_t*> pointers;
  for (auto& row : rows) pointers.push_back(row.data());
  for (int64_t count : {0, 1, 2, 5, 9}) {
    std::vector<uint16_t> wanted(384);
    for (size_t k = 0; k < 384; ++k) {
      float sum = 0.0f;
      for (int64_t n = 0; n < count; ++n) sum = add_rn(sum, bf16_decode(rows[n][k]));
      wanted[k] = bf16_encode(sum);
    }
    for (int bits : available_widths()) {
      std::vector<uint16_t> y(384, 0xEEEE);
      kernels(bits).combine_row(pointers.data(), count, 384, y.data());
      EXPECT_EQ(y, wanted) << bits << " bits, " << count << " contributions";
    }
  }
}

TEST(CombineRow, NoContributionAndNegativeZeroGivePositiveZero) {
  const std::vector<uint16_t> negative_zero(128, 0x8000);
  const uint16_t* pointer = negative_zero.data();
  for (int bits : available_widths()) {
    for (int64_t count : {0, 1}) {
      std::vector<uint16_t> y(128, 0xEEEE);
      kernels(bits).combine_row(&pointer, count, 128, y.data());
      EXPECT_EQ(y, std::vector<uint16_t>(128, 0)) << bits;
    }
  }
}

TEST(Widths, TheWidestIsTheDefaultAndEachSaysItsOwn) {
  const std::vector<int> widths = available_widths();
  ASSERT_EQ(widths.front(), 128);
  EXPECT_EQ(kernels(0).vector_bits, widths.back());
  for (int bits : widths) EXPECT_EQ(kernels(bits).vector_bits, bits);
  EXPECT_FALSE(has_vectors(0));
  EXPECT_FALSE(has_vectors(1024));
}

}  // namespace
}  // namespace monomoe::cpu::testing
