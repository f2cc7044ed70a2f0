// Costs worked out by hand: exact cases, one rounding, the window's lower edge.
#include "weights/conversion_cost.hpp"

#include <cmath>

#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::bytes_of;

ConversionCost nvfp4(int64_t rows, int64_t cols, const Bytes& codes, const Bytes& scales) {
  return conversion_cost({WeightFormat::kNvfp4, ScaleType::kE4m3, rows, cols, codes.data(), scales.data(), 0.25f});
}
ConversionCost mxfp4(int64_t rows, int64_t cols, const Bytes& codes, const Bytes& scales) {
  return conversion_cost({WeightFormat::kMxfp4, ScaleType::kE8m0, rows, cols, codes.data(), scales.data(), 1.0f});
}

TEST(ConversionCost, Fp8IsExact) {
  Bytes codes(130 * 128, 0x38);
  codes[3] = 0;
  codes[4] = 0x80;
  const Bytes scales = bytes_of(std::vector<float>{1.0f, 0.0f});
  const ConversionCost cost = conversion_cost({WeightFormat::kFp8, ScaleType::kF32, 130, 128, codes.data(), scales.data(), 1.0f});
  EXPECT_TRUE(cost.exact);
  EXPECT_EQ(cost.weights, 130 * 128);
  EXPECT_EQ(cost.nonzero_weights, 130 * 128 - 2);
  EXPECT_EQ(cost.groups, 2);
  EXPECT_EQ(cost.zero_scales, 1);
  EXPECT_EQ(cost.first_zero_row, 1);
  EXPECT_EQ(cost.first_zero_column, 0);
}

TEST(ConversionCost, Bf16DoesNotConvert) {
  const Bytes codes(64, 0);
  const ConversionCost cost = conversion_cost({WeightFormat::kBf16, ScaleType::kNone, 2, 16, codes.data(), nullptr, 1.0f});
  EXPECT_FALSE(cost.converts);
  EXPECT_EQ(cost.weights, 32);
}

TEST(ConversionCost, Nvfp4WithPowerOfTwoScalesIsExact) {
  Bytes codes(16);
  for (size_t i = 0; i < 8; ++i) codes[i] = codes[8 + i] = static_cast<uint8_t>((2 * i) | ((2 * i + 1) << 4));
  const ConversionCost cost = nvfp4(1, 32, codes, {0x38, 0x40});  // scales 1 and 2
  EXPECT_TRUE(cost.exact);
  EXPECT_EQ(cost.nonzero_weights, 28);  // each group holds +0 and -0
  EXPECT_EQ(cost.shift, 5);             // the largest is 6 * 2 = 12; 12 * 2^5 = 384
  EXPECT_EQ(cost.worst_relative_error, 0);
  EXPECT_EQ(cost.groups, 2);
  EXPECT_EQ(cost.groups_outside_window, 0);
}

TEST(ConversionCost, Nvfp4RoundsOneAndAHalfTimesNineEighths) {
  // 1.5 * 1.125 = 1.6875 = 1.1011b: a tie between 1.625 and 1.75; even is 1.75.
  const ConversionCost cost = nvfp4(1, 16, Bytes(8, 0x33), {0x39});
  EXPECT_FALSE(cost.exact);
  EXPECT_EQ(cost.rounded_weights, 16);
  EXPECT_DOUBLE_EQ(cost.worst_relative_error, 1.75 / 1.6875 - 1);
  EXPECT_DOUBLE_EQ(cost.rms_relative_error, 1.75 / 1.6875 - 1);
  EXPECT_EQ(cost.groups_outside_window, 0);
}

TEST(ConversionCost, RmsIsOverNonZeroWeights) {
  Bytes codes(8, 0x00);
  codes[0] = 0x23;  // 1.5 (rounded) and 1 (exact), fourteen zeros
  const ConversionCost cost = nvfp4(1, 16, codes, {0x39});
  EXPECT_EQ(cost.nonzero_weights, 2);
  EXPECT_EQ(cost.rounded_weights, 1);
  EXPECT_DOUBLE_EQ(cost.rms_relative_error, (1.75 / 1.6875 - 1) / std::sqrt(2.0));
}

TEST(ConversionCost, Mxfp4InsideTheWindowIsExact) {
  // 6 * 2^0 sets the shift to 6 (384); e4m3 holds 0.5 * 2^-8 * 2^6 = 2^-3 and below that down to 2^-9.
  Bytes codes(32, 0x77);
  for (size_t i = 16; i < 32; ++i) codes[i] = 0x11;
  const ConversionCost cost = mxfp4(1, 64, codes, {127, 113});  // 0.5 * 2^-14 * 2^6 = 2^-9, the smallest subnormal
  EXPECT_EQ(cost.shift, 6);
  EXPECT_TRUE(cost.exact);
  EXPECT_EQ(cost.groups_outside_window, 0);
}

TEST(ConversionCost, Mxfp4BelowTheWindowIsCounted) {
  Bytes codes(48, 0x77);
  for (size_t i = 16; i < 32; ++i) codes[i] = 0x11;  // 0.5 * 2^-15 * 2^6 = 2^-10: a tie to zero
  for (size_t i = 32; i < 48; ++i) codes[i] = 0x33;  // 1.5 * 2^-15 * 2^6 = 1.5 * 2^-9: between 1 and 2 subnormal steps, even is 2
  const ConversionCost cost = mxfp4(1, 96, codes, {127, 112, 112});
  EXPECT_FALSE(cost.exact);
  EXPECT_EQ(cost.groups, 3);
  EXPECT_EQ(cost.groups_outside_window, 2);
  EXPECT_EQ(cost.underflows, 32);
  EXPECT_EQ(cost.rounded_weights, 64);
  EXPECT_EQ(cost.worst_relative_error, 1.0);
  EXPECT_DOUBLE_EQ(cost.rms_relative_error, std::sqrt((32 * 1.0 + 32 * (1.0 / 9)) / 96));
}

TEST(ConversionCost, AllZeroMatrices) {
  const ConversionCost zero = mxfp4(1, 32, Bytes(16, 0x80), {200});
  EXPECT_TRUE(zero.exact);
  EXPECT_EQ(zero.shift, 0);
  EXPECT_EQ(zero.nonzero_weights, 0);
  EXPECT_EQ(zero.rms_relative_error, 0);
  const ConversionCost scales = nvfp4(2, 16, Bytes(16, 0x22), {0x38, 0x00});
  EXPECT_EQ(scales.nonzero_weights, 16);
  EXPECT_EQ(scales.zero_scales, 1);
  EXPECT_EQ(scales.first_zero_row, 1);
}

TEST(ConversionCost, BadScalesAreCountedAndPlaced) {
  const ConversionCost cost = nvfp4(1, 64, Bytes(32, 0x22), {0x7F, 0x38, 0xB8, 0x00});
  EXPECT_EQ(cost.nan_scales, 1);
  EXPECT_EQ(cost.negative_scales, 1);
  EXPECT_EQ(cost.zero_scales, 1);
  ASSERT_EQ(cost.bad_values.count, 2);
  EXPECT_EQ(cost.bad_values.findings[1].column, 2);
  EXPECT_EQ(cost.nonzero_weights, 32);
  const ConversionCost mx = mxfp4(1, 32, Bytes(16, 0x22), {255});
  EXPECT_EQ(mx.nan_scales, 1);
  EXPECT_EQ(mx.nonzero_weights, 0);
}

TEST(ConversionCost, ExtremeMxfp4ScalesStayExact) {
  EXPECT_TRUE(mxfp4(1, 32, Bytes(16, 0x77), {0}).exact);
  EXPECT_TRUE(mxfp4(1, 32, Bytes(16, 0x77), {254}).exact);
}

}  // namespace
}  // namespace monomoe
