// Conversions between formats: exact where they claim to be, every change counted with its first place, bounds of what is rounded.
#include "weights/convert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/e4m3.h"
#include "reference/random_layer.hpp"
#include "weights/matrix_values.hpp"
#include "weights/scan.hpp"

namespace monomoe {
namespace convert_test {

std::vector<double> values_of(const SourceMatrix& m) {
  std::vector<double> values(static_cast<size_t>(m.rows * m.cols));
  for (int64_t row = 0; row < m.rows; ++row) decode_row(m, row, &values[static_cast<size_t>(row * m.cols)]);
  return values;
}

// A matrix that owns its bytes.
struct Stored {
  std::vector<uint8_t> codes, scales;
  SourceMatrix matrix;
};

Stored mxfp4(int64_t rows, int64_t cols, const std::vector<uint8_t>& codes, const std::vector<uint8_t>& scales) {
  Stored out{codes, scales, {}};
  out.matrix = {WeightFormat::kMxfp4, ScaleType::kE8m0, rows, cols, out.codes.data(), out.scales.data()};
  return out;
}

Stored bf16(int64_t rows, int64_t cols, const std::vector<float>& values) {
  Stored out;
  for (const float value : values) {
    const uint16_t code = bf16_encode(value);
    out.codes.push_back(static_cast<uint8_t>(code));
    out.codes.push_back(static_cast<uint8_t>(code >> 8));
  }
  out.matrix = {WeightFormat::kBf16, ScaleType::kNone, rows, cols, out.codes.data(), nullptr};
  return out;
}

// The gate of an expert whose three matrices are `m`.
ConvertedMatrix convert(const SourceMatrix& m, WeightFormat format) { return std::move(convert_expert({m, m, m}, format).gate); }

void expect_exact(const SourceMatrix& before, const ConvertedMatrix& after) {
  EXPECT_EQ(after.change.changed, 0);
  EXPECT_EQ(after.change.weights, before.rows * before.cols);
  EXPECT_EQ(values_of(after.matrix), values_of(before));
  EXPECT_EQ(scan_matrix(after.matrix).count, 0);
}

TEST(Convert, Mxfp4BecomesNvfp4WithTheSameCodesOver17Octaves) {
  std::vector<uint8_t> codes(16 * 18), scales;
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + 5);
  for (int octave = 0; octave < 18; ++octave) scales.push_back(static_cast<uint8_t>(100 + octave));
  const Stored source = mxfp4(1, 32 * 18, codes, scales);
  const ConvertedMatrix out = convert(source.matrix, WeightFormat::kNvfp4);
  expect_exact(source.matrix, out);
  EXPECT_EQ(out.codes, codes);
  EXPECT_EQ(out.matrix.global_scale, std::ldexp(1.0f, 117 - 127 - 8));
  EXPECT_EQ(out.scales.front(), 0x01);  // 2^-9, subnormal
  EXPECT_EQ(out.scales.back(), 0x78);   // 2^8
}

TEST(Convert, AnMxfp4GroupTooFarBelowIsCountedWhereItsCodesDoNotFit) {
  // Groups at 2^-11 and 2^7: one octave more than fits. In the lower one 2 (0x4) still has a code, 0.5 (0x1) has none.
  std::vector<uint8_t> codes(32, 0x22);
  std::fill(codes.begin(), codes.begin() + 16, uint8_t{0x44});
  const Stored even = mxfp4(1, 64, codes, {116, 134});
  expect_exact(even.matrix, convert(even.matrix, WeightFormat::kNvfp4));
  codes[3] = 0x14;  // the odd column 7
  const Stored odd = mxfp4(1, 64, codes, {116, 134});
  const ConversionChange change = convert(odd.matrix, WeightFormat::kNvfp4).change;
  EXPECT_EQ(change.changed, 1);
  EXPECT_EQ(change.underflows, 1);
  EXPECT_EQ(change.first_row, 0);
  EXPECT_EQ(change.first_column, 7);
  EXPECT_EQ(change.first_before, std::ldexp(0.5, -11));
  EXPECT_EQ(change.first_after, 0);
  EXPECT_EQ(change.worst_relative_error, 1);
}

TEST(Convert, GateAndUpShareTheirGlobalScale) {
  const Stored gate = mxfp4(1, 32, std::vector<uint8_t>(16, 0x33), {120}), up = mxfp4(1, 32, std::vector<uint8_t>(16, 0x33), {125});
  const ConvertedExpert out = convert_expert({gate.matrix, up.matrix, gate.matrix}, WeightFormat::kNvfp4);
  EXPECT_EQ(out.gate.matrix.global_scale, out.up.matrix.global_scale);
  EXPECT_NE(out.down.matrix.global_scale, out.up.matrix.global_scale);
  expect_exact(gate.matrix, out.gate);
  expect_exact(up.matrix, out.up);
}

TEST(Convert, ThereAndBackGivesTheSameBytes) {
  const RandomMatrix source = random_matrix(WeightFormat::kMxfp4, 64, 256, 7, 0);
  const ConvertedMatrix there = convert(source.matrix, WeightFormat::kNvfp4);
  expect_exact(source.matrix, there);
  const ConvertedMatrix back = convert(there.matrix, WeightFormat::kMxfp4);
  EXPECT_EQ(back.change.changed, 0);
  EXPECT_EQ(std::memcmp(back.matrix.codes, source.codes.data(), source.codes.size()), 0);
  EXPECT_EQ(std::memcmp(back.matrix.scales, source.scales.data(), source.scales.size()), 0);
}

TEST(Convert, GeneralNvfp4ScalesAreCountedAsChanged) {
  const RandomMatrix source = random_matrix(WeightFormat::kNvfp4, 32, 256, 7, 0);
  const ConvertedMatrix out = convert(source.matrix, WeightFormat::kMxfp4);
  const std::vector<double> before = values_of(source.matrix), after = values_of(out.matrix);
  int64_t changed = 0, first = -1;
  double worst = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    if (changed++ == 0) first = static_cast<int64_t>(i);
    worst = std::max(worst, before[i] == 0 ? 1.0 : std::fabs(after[i] - before[i]) / std::fabs(before[i]));
  }
  EXPECT_GT(changed, 0);
  EXPECT_EQ(out.change.changed, changed);
  EXPECT_EQ(out.change.first_row * 256 + out.change.first_column, first);
  EXPECT_EQ(out.change.worst_relative_error, worst);
}

TEST(Convert, NvfpGroupsThatShareNoScaleAreStillExactWhereTheyCan) {
  // Two groups of 16 with scales 1 and 2: 6 * 1 and 3 * 2 are one value, and so on down to 0.5 * 2 and 1 * 1.
  Stored source;
  source.codes.assign(8, 0x46);                      // 4 and 2 at scale 1
  source.codes.insert(source.codes.end(), 8, 0x21);  // 0.5 and 1 at scale 2
  source.scales = {0x38, 0x40};
  source.matrix = {WeightFormat::kNvfp4, ScaleType::kE4m3, 1, 32, source.codes.data(), source.scales.data(), 0.5f};
  expect_exact(source.matrix, convert(source.matrix, WeightFormat::kMxfp4));
}

TEST(Convert, Bf16ValuesThatAFormatHoldsStayExact) {
  std::vector<float> values;
  for (int i = 0; i < 128 * 64; ++i) values.push_back((i % 7 == 0 ? -1.5f : i % 3 == 0 ? 0.0f : 6.0f) * 0x1p-5f);
  const Stored source = bf16(128, 64, values);
  expect_exact(source.matrix, convert(source.matrix, WeightFormat::kMxfp4));
  expect_exact(source.matrix, convert(source.matrix, WeightFormat::kFp8));
}

double largest_in(const std::vector<double>& values, int64_t cols, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  double largest = 0;
  for (int64_t r = row; r < std::min(row + rows, static_cast<int64_t>(values.size()) / cols); ++r) {
    for (int64_t c = column; c < column + columns; ++c) largest = std::max(largest, std::fabs(values[static_cast<size_t>(r * cols + c)]));
  }
  return largest;
}

TEST(Convert, RoundingStaysWithinHalfAStepOfTheTargetsCodes) {
  constexpr int64_t kRows = 160, kCols = 256;
  const RandomMatrix source = random_matrix(WeightFormat::kBf16, kRows, kCols, 11, 0);
  const std::vector<double> before = values_of(source.matrix);
  struct Limit {
    WeightFormat format;
    int64_t rows, columns;  // that share a scale
    double share;           // of their largest magnitude
  };
  // FP8: half a step is 1/16 of a value or less. NVFP4: 6's neighbour is 4, half a step 1/6, and the scale is rounded by up to
  // 1/16. MXFP4: the largest becomes 4 or 6, half a step 1/4 of 4.
  for (const Limit& limit : {Limit{WeightFormat::kFp8, 128, 128, 1.0 / 16}, Limit{WeightFormat::kNvfp4, 1, 16, 0.23},
                             Limit{WeightFormat::kMxfp4, 1, 32, 0.26}}) {
    const ConvertedMatrix out = convert(source.matrix, limit.format);
    const std::vector<double> after = values_of(out.matrix);
    EXPECT_EQ(scan_matrix(out.matrix).count, 0);
    std::vector<double> error(before.size());
    for (size_t i = 0; i < error.size(); ++i) error[i] = after[i] - before[i];
    for (int64_t row = 0; row < kRows; row += limit.rows) {
      for (int64_t col = 0; col < kCols; col += limit.columns) {
        const double largest = largest_in(before, kCols, row, col, limit.rows, limit.columns);
        ASSERT_LE(largest_in(error, kCols, row, col, limit.rows, limit.columns), limit.share * largest) << row << ", " << col;
      }
    }
  }
}

TEST(Convert, Fp8BlocksOf32BecomeBlocksOf128) {
  Stored source;
  source.codes.assign(128 * 128, 0x38);
  std::vector<float> scales(16, 0.5f);
  scales[5] = 2.0f;  // powers of two apart: exact
  const auto set = [&] {
    source.scales.resize(64);
    std::memcpy(source.scales.data(), scales.data(), 64);
    source.matrix = {WeightFormat::kFp8, ScaleType::kF32, 128, 128, source.codes.data(), source.scales.data(), 1.0f, 32};
  };
  set();
  const ConvertedMatrix exact = convert(source.matrix, WeightFormat::kFp8);
  expect_exact(source.matrix, exact);
  EXPECT_EQ(exact.scales.size(), 4u);
  EXPECT_EQ(exact.matrix.scale_block, 128);
  scales[5] = 0.55f;  // not: 32 x 32 weights are rounded by at most 2^-4
  set();
  const ConvertedMatrix rounded = convert(source.matrix, WeightFormat::kFp8);
  EXPECT_EQ(rounded.change.changed, 32 * 32);
  EXPECT_EQ(rounded.change.first_row, 32);
  EXPECT_EQ(rounded.change.first_column, 32);
  EXPECT_LE(rounded.change.worst_relative_error, 0x1p-4);
}

TEST(Convert, ZerosStayZerosOfTheirSign) {
  const Stored source = bf16(1, 32, std::vector<float>(32, -0.0f));
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const ConvertedMatrix out = convert(source.matrix, format);
    EXPECT_EQ(out.change.changed, 0);
    EXPECT_EQ(scan_matrix(out.matrix).count, 0);
    for (const double value : values_of(out.matrix)) EXPECT_TRUE(value == 0 && std::signbit(value));
  }
}

TEST(Convert, TheSameFormatIsNotTouched) {
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    const RandomMatrix source = random_matrix(format, 64, 128, 3, 1);
    const ConvertedMatrix out = convert(source.matrix, format);
    EXPECT_EQ(out.matrix.codes, source.matrix.codes);
    EXPECT_EQ(out.matrix.scales, source.matrix.scales);
    EXPECT_EQ(out.change.changed, 0);
  }
}

}  // namespace convert_test
}  // namespace monomoe
