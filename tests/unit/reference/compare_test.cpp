// The comparisons themselves: what counts as outside, which element is reported, and the numbers beside it.
#include "reference/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace monomoe {
namespace {

const double kNan = std::nan("");
const double kInf = INFINITY;

TEST(CompareValues, CountsOutsideAndNamesTheWorst) {
  const std::vector<double> want{1, 2, 3, 4, 5, 6}, bounds{0.1, 0.1, 1, 0.1, 0.1, 0.1};
  const std::vector<double> got{1.05, 2.3, 3.9, 4, 4.85, 6};
  const Comparison c = compare_values(got, want, bounds, 3);
  EXPECT_EQ(c.elements, 6);
  EXPECT_EQ(c.outside_bound, 2);
  EXPECT_EQ(c.first_outside, 1);
  EXPECT_EQ(c.worst.row, 0);
  EXPECT_EQ(c.worst.column, 1);
  EXPECT_EQ(c.worst.got, 2.3);
  EXPECT_EQ(c.worst.want, 2);
  EXPECT_EQ(c.worst.bound, 0.1);
  EXPECT_FALSE(c.ok());
  EXPECT_NE(describe(c).find("2 of 6 elements outside the bound; worst at row 0, column 1: got 2.3"), std::string::npos) << describe(c);
}

TEST(CompareValues, NanMustMeetNan) {
  const std::vector<double> bounds{1, 1, 1, kInf, kInf};
  EXPECT_EQ(compare_values(std::vector{kNan, 1.0, 1.0, kNan, kInf}, std::vector{kNan, 1.0, 1.0, 0.0, 0.0}, bounds, 5).outside_bound, 0);
  EXPECT_EQ(compare_values(std::vector{1.0, 1.0, 1.0, 0.0, 0.0}, std::vector{kNan, 1.0, 1.0, 0.0, 0.0}, bounds, 5).outside_bound, 1);
  EXPECT_EQ(compare_values(std::vector{1.0, kNan, kInf, 0.0, 0.0}, std::vector{1.0, 1.0, 1.0, 0.0, 0.0}, bounds, 5).outside_bound, 2);
  // An unbounded element that must be NaN still must be.
  EXPECT_EQ(compare_values(std::vector{1.0, 1.0, 1.0, 5.0, 0.0}, std::vector{1.0, 1.0, 1.0, kNan, 0.0}, bounds, 5).outside_bound, 1);
}

TEST(CompareValues, ElementsWithoutABoundAreCounted) {
  const Comparison c = compare_values(std::vector{kNan, 1.0, kNan, 2.0}, std::vector{3.0, 1.0, kNan, 2.0}, std::vector{kInf, 1.0, kInf, kInf}, 4);
  EXPECT_TRUE(c.ok());
  EXPECT_EQ(c.unjudged, 2);  // of the third a NaN is wanted, and that is judged
  EXPECT_EQ(c.compared, 2);
  EXPECT_EQ(compare_values(std::vector{kNan}, std::vector{3.0}, {}, 1).compared, 0);
}

TEST(CompareValues, ZeroBoundWantsEquality) {
  EXPECT_TRUE(compare_values(std::vector{0.0, -0.0}, std::vector{0.0, 0.0}, std::vector{0.0, 0.0}, 2).ok());
  EXPECT_EQ(compare_values(std::vector{0.0, 1e-300}, std::vector{0.0, 0.0}, std::vector{0.0, 0.0}, 2).outside_bound, 1);
}

TEST(CompareValues, NumbersAreTheDefinitions) {
  const Comparison c = compare_values(std::vector{3.0, 4.0}, std::vector{4.0, 3.0}, {}, 2);
  EXPECT_DOUBLE_EQ(c.cosine, 24.0 / 25.0);
  EXPECT_DOUBLE_EQ(c.calc_diff, 1 - 2 * 24.0 / 50.0);
  EXPECT_DOUBLE_EQ(c.rms_relative, std::sqrt(2.0 / 25.0));
  EXPECT_EQ(c.outside_bound, 0);
  const Comparison zeros = compare_values(std::vector{0.0}, std::vector{0.0}, {}, 1);
  EXPECT_EQ(zeros.cosine, 1);
  EXPECT_EQ(zeros.calc_diff, 0);
  EXPECT_EQ(zeros.rms_relative, 0);
  const Comparison lost = compare_values(std::vector{0.0}, std::vector{2.0}, {}, 1);
  EXPECT_EQ(lost.cosine, 0);
  EXPECT_EQ(lost.calc_diff, 1);
  EXPECT_EQ(compare_values({}, {}, {}, 4).worst.row, -1);
}

TEST(CompareBits, ReportsTheFirstDifference) {
  const std::vector<uint16_t> want{0x3F80, 0x0000, 0x4000, 0x7FFF}, got{0x3F80, 0x8000, 0x4001, 0x7FFF};
  const BitDifference d = compare_bf16_bits(got, want, 2);
  EXPECT_EQ(d.elements, 4);
  EXPECT_EQ(d.different, 2);
  EXPECT_EQ(d.row, 0);
  EXPECT_EQ(d.column, 1);
  EXPECT_EQ(d.got_bits, 0x8000u);
  EXPECT_EQ(d.want_bits, 0u);
  EXPECT_EQ(describe(d), "2 of 4 elements differ; first at row 0, column 1: got 0x8000 (-0), want 0x0 (0)");
  EXPECT_EQ(compare_bf16_bits(want, want, 2).different, 0);
  EXPECT_EQ(compare_e4m3_bits(std::vector<uint8_t>{0x38, 0xB8}, std::vector<uint8_t>{0x38, 0x38}, 1).row, 1);
  EXPECT_EQ(compare_fp32_bits(std::vector<float>{NAN}, std::vector<float>{NAN}, 1).different, 0);
  EXPECT_EQ(compare_fp32_bits(std::vector<float>{0.0f}, std::vector<float>{-0.0f}, 1).different, 1);
}

TEST(Values, GroupsDropThePadding) {
  std::vector<uint8_t> codes(2 * 128, 0x38);
  codes[128 + 31] = 0xC0;  // -2
  const std::vector<double> values = values_of_groups(codes, std::vector<float>{0.5f, 3.0f}, 32);
  ASSERT_EQ(values.size(), 64u);
  EXPECT_EQ(values[0], 0.5);
  EXPECT_EQ(values[63], -6.0);
  EXPECT_EQ(values[62], 3.0);
}

}  // namespace
}  // namespace monomoe
