// The contract's own results lie inside the float64 layer's bounds, whatever the input; and the bounds still notice a wrong layer.
#include "reference/float64_layer.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "numerics/bf16.h"
#include "reference/compare.hpp"
#include "reference/contract_layer.hpp"
#include "reference/random_layer.hpp"

namespace monomoe {
namespace {

Case case_of(const std::string& line) {
  auto parsed = parse_case(line);
  EXPECT_TRUE(parsed.ok()) << (parsed.ok() ? "" : parsed.error().message);
  return parsed.take();
}

struct Stages {
  Comparison intermediate, contributions, output;
};

Stages compare_stages(const Case& c, const ContractResult& got, const Float64Result& want) {
  const int64_t hidden = c.problem.hidden, inter = c.problem.intermediate;
  return {compare_values(values_of_groups(got.stages.mid_codes, got.stages.mid_scales, inter), want.intermediate.values,
                         want.intermediate.bounds, inter),
          compare_values(values_of_bf16(got.stages.contributions), want.contributions.values, want.contributions.bounds, hidden),
          compare_values(values_of_bf16(got.y), want.output.values, want.output.bounds, hidden)};
}

void expect_inside(const Case& c, const RandomLayer& layer) {
  const auto sources = layer.sources();
  const auto got = contract_layer(layer.input(c), sources);
  const auto want = float64_layer(layer.input(c), sources, 2);
  ASSERT_TRUE(got.ok() && want.ok());
  EXPECT_TRUE(compare_e4m3_bits(got.value().stages.tokens.codes, want.value().tokens.codes, c.problem.hidden).ok());
  const Stages stages = compare_stages(c, got.value(), want.value());
  EXPECT_TRUE(stages.intermediate.ok()) << describe(stages.intermediate);
  EXPECT_TRUE(stages.contributions.ok()) << describe(stages.contributions);
  EXPECT_TRUE(stages.output.ok()) << describe(stages.output);
}

class Bounds : public ::testing::TestWithParam<const char*> {};

TEST_P(Bounds, HoldOverRandomLayers) {
  for (const char* rest : {" experts=3 topk=2 tokens=6 hidden=256 inter=128", " experts=2 topk=1 tokens=5 hidden=128 inter=96 limit=0.3",
                           " experts=2 topk=2 tokens=4 hidden=640 inter=352"}) {
    for (int seed = 1; seed <= 3; ++seed) {
      const Case c = case_of(std::string("w=") + GetParam() + rest + " seed=" + std::to_string(seed));
      expect_inside(c, random_layer(c));
    }
  }
}

// Inputs that press on one term of the bound each.
TEST_P(Bounds, HoldOverAdversarialTokens) {
  const Case c = case_of(std::string("w=") + GetParam() + " experts=2 topk=2 tokens=9 hidden=256 inter=160 seed=7");
  RandomLayer layer = random_layer(c);
  const int64_t hidden = c.problem.hidden;
  const auto row = [&](int64_t token, auto value) {
    for (int64_t k = 0; k < hidden; ++k) layer.x[token * hidden + k] = bf16_encode(static_cast<float>(value(k)));
  };
  row(0, [](int64_t) { return 0.0; });
  row(1, [](int64_t k) { return k == 77 ? 1e4 : 0.0; });
  row(2, [](int64_t k) { return k % 2 == 0 ? 448.0 : -448.0; });
  row(3, [](int64_t k) { return std::ldexp(1.0, -static_cast<int>(k % 30)); });
  row(4, [](int64_t k) { return k == 0 ? 1.0 : 1.0 / 512 * (k % 3 == 0 ? -1 : 1); });
  row(5, [](int64_t) { return 1e-30; });
  row(6, [](int64_t k) { return (k % 7 - 3) * 3e5; });
  row(7, [](int64_t k) { return k % 128 < 64 ? 1.03 : 1e-9; });
  row(8, [](int64_t k) { return k % 5 == 0 ? -3e7 : 1e-3; });
  expect_inside(c, layer);
  for (float& weight : layer.weights) weight = -1e-40f;
  expect_inside(c, layer);
  for (float& weight : layer.weights) weight = 1e30f;
  expect_inside(c, layer);
}

TEST_P(Bounds, NanStaysInItsRow) {
  const Case c = case_of(std::string("w=") + GetParam() + " experts=3 topk=2 tokens=4 hidden=128 inter=64 seed=11");
  RandomLayer layer = random_layer(c);
  layer.x[1 * c.problem.hidden + 5] = 0x7F80;  // infinity
  layer.weights[2 * c.problem.topk + 1] = std::numeric_limits<float>::quiet_NaN();
  const auto sources = layer.sources();
  const auto got = contract_layer(layer.input(c), sources);
  ASSERT_TRUE(got.ok());
  for (int64_t i = 0; i < c.tokens * c.problem.hidden; ++i) {
    const int64_t token = i / c.problem.hidden;
    EXPECT_EQ(got.value().y[i] == kBf16NaN, token == 1 || token == 2) << i;
  }
  expect_inside(c, layer);
}

// A layer with one wrong expert, a forgotten clamp or a swapped gate must not pass for inside.
TEST_P(Bounds, NoticeWrongLayers) {
  const Case c = case_of(std::string("w=") + GetParam() + " experts=3 topk=2 tokens=6 hidden=256 inter=128 seed=13 limit=0.5");
  const RandomLayer layer = random_layer(c);
  const auto sources = layer.sources();
  const auto want = float64_layer(layer.input(c), sources, 1);
  ASSERT_TRUE(want.ok());
  const auto outside = [&](const LayerInput& input, const std::vector<SourceExpert>& experts) {
    const auto got = contract_layer(input, experts);
    const Stages stages = compare_stages(c, got.value(), want.value());
    return stages.intermediate.outside_bound;
  };
  EXPECT_EQ(outside(layer.input(c), sources), 0);
  auto swapped = sources;
  for (SourceExpert& expert : swapped) std::swap(expert.gate, expert.up);
  EXPECT_GT(outside(layer.input(c), swapped), 100);
  LayerInput unclamped = layer.input(c);
  unclamped.limit = std::numeric_limits<float>::infinity();
  EXPECT_GT(outside(unclamped, sources), 100);
  auto rotated = sources;
  std::swap(rotated[0], rotated[1]);
  EXPECT_GT(outside(layer.input(c), rotated), 100);
}

// Bounds that hold but say nothing would be useless: the intermediate's stays near e4m3's own rounding.
TEST_P(Bounds, AreNotAbsurdlyLoose) {
  const Case c = case_of(std::string("w=") + GetParam() + " experts=1 topk=1 tokens=4 hidden=512 inter=128 seed=17");
  const RandomLayer layer = random_layer(c);
  const auto sources = layer.sources();
  const auto want = float64_layer(layer.input(c), sources, 1);
  ASSERT_TRUE(want.ok());
  const auto ratio = [](const BoundedStage& stage) {
    double bound = 0, value = 0;
    for (size_t i = 0; i < stage.values.size(); ++i) {
      bound += stage.bounds[i] * stage.bounds[i];
      value += stage.values[i] * stage.values[i];
    }
    return std::sqrt(bound / value);
  };
  RecordProperty("intermediate", std::to_string(ratio(want.value().intermediate)));
  RecordProperty("output", std::to_string(ratio(want.value().output)));
  EXPECT_LT(ratio(want.value().intermediate), 0.3);
  EXPECT_LT(ratio(want.value().output), 1.5);
  EXPECT_GT(ratio(want.value().intermediate), 0.02);
}

TEST_P(Bounds, ThreadsAndExactLayerAgree) {
  const Case c = case_of(std::string("w=") + GetParam() + " experts=5 topk=3 tokens=8 hidden=256 inter=96 seed=19 dist=masked");
  const RandomLayer layer = random_layer(c);
  const auto sources = layer.sources();
  const auto one = float64_layer(layer.input(c), sources, 1), three = float64_layer(layer.input(c), sources, 3);
  ASSERT_TRUE(one.ok() && three.ok());
  EXPECT_EQ(one.value().output.values, three.value().output.values);
  EXPECT_EQ(one.value().output.bounds, three.value().output.bounds);
  const auto exact = exact_layer(layer.input(c), sources, 2);
  ASSERT_TRUE(exact.ok());
  const Comparison comparison = compare_values(one.value().output.values, exact.value(), {}, c.problem.hidden);
  EXPECT_GT(comparison.cosine, 0.995) << describe(comparison);
  EXPECT_LT(comparison.cosine, 1.0) << describe(comparison);
}

INSTANTIATE_TEST_SUITE_P(Formats, Bounds, ::testing::Values("fp8", "nvfp4", "mxfp4"));

TEST(Float64Layer, RefusesBf16WeightsButTheExactLayerTakesThem) {
  const RandomMatrix gate = random_matrix(WeightFormat::kBf16, 32, 128, 1, 0), up = random_matrix(WeightFormat::kBf16, 32, 128, 1, 1),
                     down = random_matrix(WeightFormat::kBf16, 128, 32, 1, 2);
  const std::vector<SourceExpert> experts{{gate.matrix, up.matrix, down.matrix}};
  const std::vector<uint16_t> x(128, bf16_encode(0.5f));
  const std::vector<int64_t> ids{0};
  const std::vector<float> weights{1.0f};
  LayerInput input{128, 32, 1, 1, x, {}, {}, ids, weights};
  EXPECT_FALSE(float64_layer(input, experts, 1).ok());
  EXPECT_FALSE(contract_layer(input, experts).ok());
  EXPECT_TRUE(exact_layer(input, experts, 1).ok());
}

}  // namespace
}  // namespace monomoe
