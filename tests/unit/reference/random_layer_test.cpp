// The generator gives the same layer everywhere, and the layer it describes.
#include "reference/random_layer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "reference/decoded_matrix.hpp"

namespace monomoe {
namespace {

Case random_case_of(const std::string& line) { return parse_case(line).take(); }

uint64_t fingerprint(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001B3ull;
  return hash;
}

TEST(RandomBits, AreFixedForever) {
  // From a second implementation in Python: a change here changes every case.
  EXPECT_EQ(random_bits(0, 0, 0), 0x7AB40E090F363A7Dull);
  EXPECT_EQ(random_bits(3, 5, 7), 0xEDA965943909895ull);
  EXPECT_NE(random_bits(1, 0, 0), random_bits(0, 1, 0));
  EXPECT_NE(random_bits(0, 1, 0), random_bits(0, 0, 1));
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(random_bits(i % 10, i / 10 % 10, i / 100));
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(RandomBits, UniformAndBellHaveTheirMoments) {
  double uniform = 0, bell = 0, square = 0, largest = 0;
  const int count = 100000;
  for (int i = 0; i < count; ++i) {
    const double u = random_uniform(1, 2, i), b = random_bell(1, 3, i);
    ASSERT_TRUE(u >= 0 && u < 1);
    uniform += u;
    bell += b;
    square += b * b;
    largest = std::max(largest, std::fabs(b));
  }
  EXPECT_NEAR(uniform / count, 0.5, 0.005);
  EXPECT_NEAR(bell / count, 0, 0.015);
  EXPECT_NEAR(square / count, 1, 0.02);
  EXPECT_LT(largest, 3.5);
}

TEST(RandomLayer, SeedsDecideEverything) {
  const std::string line = "experts=3 topk=2 tokens=4 hidden=128 inter=64 w=nvfp4 seed=";
  const RandomLayer a = random_layer(random_case_of(line + "5")), b = random_layer(random_case_of(line + "5")), c = random_layer(random_case_of(line + "6"));
  EXPECT_EQ(a.x, b.x);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.experts[2].down.codes, b.experts[2].down.codes);
  EXPECT_NE(a.x, c.x);
  EXPECT_NE(a.experts[0].gate.codes, c.experts[0].gate.codes);
  EXPECT_NE(fingerprint(a.experts[0].gate.codes), fingerprint(a.experts[0].up.codes));
  EXPECT_NE(fingerprint(a.experts[0].gate.codes), fingerprint(a.experts[1].gate.codes));
}

TEST(RandomMatrix, HasUnitGainInEveryFormat) {
  for (WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4, WeightFormat::kBf16}) {
    double sum = 0;
    const int64_t rows = 128, cols = 256, matrices = 16;
    for (uint64_t seed = 0; seed < matrices; ++seed) {
      const RandomMatrix m = random_matrix(format, rows, cols, seed, 0);
      std::vector<double> values(cols);
      for (int64_t row = 0; row < rows; ++row) {
        exact_row(m.matrix, row, values.data());
        for (double v : values) sum += v * v;
      }
    }
    const double gain = std::sqrt(sum / (rows * matrices));
    EXPECT_GT(gain, 0.4) << static_cast<int>(format);
    EXPECT_LT(gain, 2.0) << static_cast<int>(format);
  }
}

TEST(RandomMatrix, Fp8UsesEveryScaleTypeAndNoNan) {
  std::set<ScaleType> types;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const RandomMatrix m = random_matrix(WeightFormat::kFp8, 64, 128, seed, 0);
    types.insert(m.matrix.scale_type);
    for (uint8_t code : m.codes) ASSERT_FALSE(e4m3_is_nan(code));
  }
  EXPECT_EQ(types.size(), 3u);
}

TEST(RandomRoutes, FollowTheirDistribution) {
  const std::string line = "experts=8 topk=3 tokens=200 hidden=128 inter=32 w=fp8 seed=3 dist=";
  const auto count = [](const RandomLayer& layer, int64_t id) { return std::count(layer.ids.begin(), layer.ids.end(), id); };
  const RandomLayer uniform = random_layer(random_case_of(line + "uniform"));
  for (int64_t token = 0; token < 200; ++token) {
    const std::set<int64_t> ids(uniform.ids.begin() + token * 3, uniform.ids.begin() + token * 3 + 3);
    ASSERT_EQ(ids.size(), 3u) << "distinct while there are experts left";
    ASSERT_GE(*ids.begin(), 0);
    ASSERT_LT(*ids.rbegin(), 8);
  }
  for (int64_t e = 0; e < 8; ++e) EXPECT_NEAR(count(uniform, e), 75, 30) << e;
  EXPECT_EQ(count(random_layer(random_case_of(line + "one")), 0), 600);
  const RandomLayer zipf = random_layer(random_case_of(line + "zipf"));
  EXPECT_GT(count(zipf, 0), 3 * count(zipf, 7));
  const RandomLayer masked = random_layer(random_case_of(line + "masked"));
  EXPECT_NEAR(count(masked, -1), 600 * (0.2 + 0.8 / 3), 60);
  for (int64_t slot = 0; slot < 3; ++slot) EXPECT_EQ(masked.ids[4 * 3 + slot], -1);
  for (size_t i = 0; i < masked.ids.size(); ++i) ASSERT_EQ(std::isnan(masked.weights[i]), masked.ids[i] < 0);
}

}  // namespace
}  // namespace monomoe
