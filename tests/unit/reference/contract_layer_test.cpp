// The contract layer on inputs whose answer is known by hand, and the rules that make rows independent.
#include "reference/contract_layer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "numerics/bf16.h"
#include "reference/compare.hpp"
#include "reference/random_layer.hpp"

namespace monomoe {
namespace {

constexpr float kNone = std::numeric_limits<float>::infinity();
constexpr int64_t kHidden = 256, kInter = 96;

// Every weight of a matrix is the same value: gate and up sum to g and u for a token of 1 / hidden, down gives the mean.
struct ConstantExpert {
  std::vector<uint8_t> gate, up, down, scales[3];
  SourceExpert source;
};

// FP8 and NVFP4 keep codes of 1 and put the value into a scale.
void fill(WeightFormat format, int64_t rows, int64_t cols, float value, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales,
          SourceMatrix& m) {
  m = {format, ScaleType::kNone, rows, cols, nullptr, nullptr, 1.0f};
  if (format == WeightFormat::kFp8) {
    m.scale_type = ScaleType::kF32;
    codes.assign(rows * cols, 0x38);  // 1
    const int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
    scales.resize(blocks * 4);
    for (int64_t i = 0; i < blocks; ++i) std::memcpy(&scales[4 * i], &value, 4);
  } else if (format == WeightFormat::kNvfp4) {
    m.scale_type = ScaleType::kE4m3;
    codes.assign(rows * cols / 2, 0x22);    // 1, 1
    scales.assign(rows * cols / 16, 0x38);  // 1
    m.global_scale = value;
  } else {
    m.scale_type = ScaleType::kE8m0;
    const int exponent = std::ilogb(value);
    const float rest = value / std::ldexp(1.0f, exponent);
    const auto nibble = static_cast<uint8_t>(rest == 1.0f ? 2 : rest == 1.5f ? 3 : 255);
    EXPECT_NE(nibble, 255) << "MXFP4 holds only 1 and 1.5 times a power of two";
    codes.assign(rows * cols / 2, static_cast<uint8_t>(nibble | nibble << 4));
    scales.assign(rows * cols / 32, static_cast<uint8_t>(127 + exponent));
  }
  m.codes = codes.data();
  m.scales = scales.data();
}

void make_constant(ConstantExpert& e, WeightFormat format, float gate, float up) {
  fill(format, kInter, kHidden, gate, e.gate, e.scales[0], e.source.gate);
  fill(format, kInter, kHidden, up, e.up, e.scales[1], e.source.up);
  // 1 / inter is no value of MXFP4; 1.5 / 128 is, and kDownGain takes the difference out again.
  fill(format, kHidden, kInter, 0x1.8p-7f, e.down, e.scales[2], e.source.down);
}
constexpr double kDownGain = 0x1.8p-7 * kInter;  // what down multiplies with, instead of 1

// One token of 1 / hidden through constant experts; the answer in every column.
double run_constant(WeightFormat format, const std::vector<std::pair<float, float>>& experts, const std::vector<float>& weights,
                    float limit = kNone) {
  std::vector<ConstantExpert> made(experts.size());
  std::vector<SourceExpert> sources;
  std::vector<int64_t> ids;
  for (size_t e = 0; e < experts.size(); ++e) {
    make_constant(made[e], format, experts[e].first, experts[e].second);
    sources.push_back(made[e].source);
    ids.push_back(static_cast<int64_t>(e));
  }
  const std::vector<uint16_t> x(kHidden, bf16_encode(1.0f / kHidden));
  LayerInput input{kHidden, kInter, static_cast<int64_t>(ids.size()), 1, x, {}, {}, ids, weights, limit};
  const auto result = contract_layer(input, sources);
  EXPECT_TRUE(result.ok());
  for (uint16_t y : result.value().y) EXPECT_EQ(y, result.value().y[0]);
  return bf16_decode(result.value().y[0]) / kDownGain;
}

constexpr double kBf16Twice = 2 * 0x1p-8;  // contribution and output are rounded to bf16

class Constant : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(Constant, WeightsAreUsedAsGiven) {
  // 2.5 silu(1) - 0.5 silu(2): neither renormalised nor clipped at zero.
  EXPECT_NEAR(run_constant(GetParam(), {{1, 1}, {2, 1}}, {2.5f, -0.5f}), 0.946849, 1.8276 * kBf16Twice + 0.8808 * kBf16Twice);
  EXPECT_NEAR(run_constant(GetParam(), {{1, 1}}, {1.0f}), 0.731059, 0.731059 * kBf16Twice);
  // A routed scaling factor of 2.5 that the caller put into the weight acts once.
  EXPECT_NEAR(run_constant(GetParam(), {{1, 1}}, {2.5f}), 1.827646, 1.827646 * kBf16Twice);
}

TEST_P(Constant, SiluIsOnTheGate) {
  EXPECT_NEAR(run_constant(GetParam(), {{2, 0.5f}}, {1.0f}), 0.880797, 0.880797 * kBf16Twice);  // swapped: 0.622459
  EXPECT_NEAR(run_constant(GetParam(), {{0.5f, 2}}, {1.0f}), 0.622459, 0.622459 * kBf16Twice);
}

TEST_P(Constant, ClampIsAsymmetric) {
  const auto silu = [](double v) { return v / (1 + std::exp(-v)); };
  EXPECT_NEAR(run_constant(GetParam(), {{8, 12}}, {1.0f}, 7.0f), silu(7) * 7, 49 * kBf16Twice);
  EXPECT_NEAR(run_constant(GetParam(), {{8, 12}}, {1.0f}), silu(8) * 12, 96 * kBf16Twice);
  if (GetParam() == WeightFormat::kMxfp4) return;  // the fill above knows positive values only
  EXPECT_NEAR(run_constant(GetParam(), {{-8, -12}}, {1.0f}, 7.0f), silu(-8) * -7, std::fabs(silu(-8)) * 7 * 2 * kBf16Twice);
}

INSTANTIATE_TEST_SUITE_P(Formats, Constant, ::testing::Values(WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4));

struct LayerRun {
  Case c;
  RandomLayer layer;
  std::vector<SourceExpert> sources;
  explicit LayerRun(const std::string& line) : c(parse_case(line).take()), layer(random_layer(c)), sources(layer.sources()) {}
  ContractResult go() const { return contract_layer(layer.input(c), sources).take(); }
};

TEST(ContractLayer, DroppedSlotsAddNothingAndAreWritten) {
  LayerRun run("experts=4 topk=2 tokens=2 hidden=128 inter=64 w=nvfp4 seed=1");
  run.layer.ids = {-1, 3, -1, -7};
  run.layer.weights = {NAN, 0.5f, NAN, INFINITY};
  const ContractResult got = run.go();
  const ContractStages& s = got.stages;
  for (int64_t c = 0; c < 128; ++c) {
    const float alone = bf16_decode(s.contributions[1 * 128 + c]);
    EXPECT_EQ(got.y[c], bf16_encode(0.0f + alone));
    EXPECT_EQ(got.y[128 + c], 0) << "+0, not left over and not -0";
  }
  EXPECT_NE(got.y[0], 0);
}

TEST(ContractLayer, EqualIdsCountOncePerSlot) {
  LayerRun twice("experts=3 topk=2 tokens=1 hidden=128 inter=64 w=fp8 seed=2");
  twice.layer.ids = {1, 1};
  twice.layer.weights = {0.5f, 0.5f};
  const ContractResult got = twice.go();
  for (int64_t c = 0; c < 128; ++c) {
    const float one = bf16_decode(got.stages.contributions[c]);
    EXPECT_EQ(got.stages.contributions[c], got.stages.contributions[128 + c]);
    EXPECT_EQ(got.y[c], bf16_encode(one + one));
  }
}

TEST(ContractLayer, ARowDoesNotDependOnItsBatch) {
  const LayerRun all("experts=4 topk=3 tokens=7 hidden=256 inter=96 w=mxfp4 seed=3");
  const ContractResult together = all.go();
  for (int64_t token : {0, 3, 6}) {
    LayerRun one = LayerRun("experts=4 topk=3 tokens=1 hidden=256 inter=96 w=mxfp4 seed=3");
    one.layer.x.assign(all.layer.x.begin() + token * 256, all.layer.x.begin() + (token + 1) * 256);
    one.layer.ids.assign(all.layer.ids.begin() + token * 3, all.layer.ids.begin() + (token + 1) * 3);
    one.layer.weights.assign(all.layer.weights.begin() + token * 3, all.layer.weights.begin() + (token + 1) * 3);
    const auto want = std::span(together.y).subspan(token * 256, 256);
    EXPECT_TRUE(compare_bf16_bits(one.go().y, want, 256).ok());
  }
}

TEST(ContractLayer, QuantisedRowsGiveTheBitsOfTheirBf16Rows) {
  const LayerRun run("experts=3 topk=2 tokens=5 hidden=384 inter=64 w=fp8 seed=4");
  const ContractResult from_bf16 = run.go();
  LayerInput input = run.layer.input(run.c);
  input.x = {};
  input.codes = from_bf16.stages.tokens.codes;
  input.scales = from_bf16.stages.tokens.scales;
  const auto from_codes = contract_layer(input, run.sources);
  ASSERT_TRUE(from_codes.ok());
  EXPECT_TRUE(compare_bf16_bits(from_codes.value().y, from_bf16.y, 384).ok());
}

// The order inside K is part of the contract: a layer whose channels are permuted computes the same numbers in another order.
TEST(ContractLayer, AnotherOrderAlongKIsNoticed) {
  const LayerRun run("experts=1 topk=1 tokens=8 hidden=256 inter=128 w=fp8 seed=5");
  const ContractResult got = run.go();
  const auto permuted = [&](int64_t k) { return k / 64 * 64 + (k + 8) % 64; };  // stays in its block: same scales
  LayerRun other("experts=1 topk=1 tokens=8 hidden=256 inter=128 w=fp8 seed=5");
  for (int64_t token = 0; token < 8; ++token) {
    for (int64_t k = 0; k < 256; ++k) other.layer.x[token * 256 + permuted(k)] = run.layer.x[token * 256 + k];
  }
  RandomExpert& moved = other.layer.experts[0];
  const RandomExpert& original = run.layer.experts[0];
  for (int64_t row = 0; row < 128; ++row) {
    for (int64_t k = 0; k < 256; ++k) {
      moved.gate.codes[row * 256 + permuted(k)] = original.gate.codes[row * 256 + k];
      moved.up.codes[row * 256 + permuted(k)] = original.up.codes[row * 256 + k];
    }
  }
  const ContractResult shifted = other.go();
  EXPECT_EQ(got.stages.tokens.scales, shifted.stages.tokens.scales);
  EXPECT_FALSE(compare_fp32_bits(shifted.stages.mid_scales, got.stages.mid_scales, 1).ok());
  const Comparison values = compare_values(values_of_bf16(shifted.y), values_of_bf16(got.y), {}, 256);
  EXPECT_GT(values.cosine, 0.9999) << "only rounding differs";
}

TEST(ContractLayer, OneWrongCodeIsFoundAtItsPlace) {
  LayerRun run("experts=2 topk=2 tokens=4 hidden=256 inter=128 w=nvfp4 seed=6");
  const ContractResult want = run.go();
  // Output channel 200 of expert 1's down projection.
  run.layer.experts[1].down.codes[200 * 64 + 10] ^= 0x40;
  const BitDifference difference = compare_bf16_bits(run.go().stages.contributions, want.stages.contributions, 256);
  EXPECT_GT(difference.different, 0);
  EXPECT_LE(difference.different, 4);
  EXPECT_EQ(difference.column, 200);
}

TEST(ContractLayer, ErrorsNameTokenSlotAndId) {
  LayerRun run("experts=4 topk=2 tokens=3 hidden=128 inter=32 w=fp8 seed=7");
  for (int64_t bad : {int64_t{4}, int64_t{5}, int64_t{INT32_MAX}, INT64_MAX}) {
    run.layer.ids[5] = bad;
    const auto result = contract_layer(run.layer.input(run.c), run.sources);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().message, "token 2, slot 1: expert id " + std::to_string(bad) + "; there are 4 experts");
  }
  run.layer.ids[5] = 0;
  LayerInput input = run.layer.input(run.c);
  for (float limit : {0.0f, -1.0f, NAN}) {
    input.limit = limit;
    EXPECT_FALSE(contract_layer(input, run.sources).ok()) << limit;
  }
  input = run.layer.input(run.c);
  input.weights = input.weights.first(5);
  EXPECT_EQ(contract_layer(input, run.sources).error().message, "weights has 5 elements; wanted 6");
}

}  // namespace
}  // namespace monomoe
