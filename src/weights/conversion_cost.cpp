// Every FP4 weight is one of 256 x 16 (scale code, nibble) pairs: count the pairs, then judge each pair once.
#include "weights/conversion_cost.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/weight_codes.h"

namespace monomoe {
namespace {

constexpr int kCodes = 256, kNibbles = 16;

// The FP4 formats through one pair of glasses: how many columns share a scale, what a scale code means, how a pair converts.
struct Fp4View {
  bool nvfp4;
  int group;
  explicit Fp4View(WeightFormat format) : nvfp4(format == WeightFormat::kNvfp4), group(nvfp4 ? 16 : 32) {}
  bool is_nan(int code) const { return nvfp4 ? e4m3_is_nan(static_cast<uint8_t>(code)) : code == kE8m0NaN; }
  double value(int code, int nibble) const {
    const double scale = nvfp4 ? e4m3_decode(static_cast<uint8_t>(code)) : e8m0_decode(static_cast<uint8_t>(code));
    return e2m1_decode(static_cast<uint8_t>(nibble)) * scale;
  }
  int shift(double max_abs) const { return nvfp4 ? nvfp4_shift(max_abs) : mxfp4_shift(max_abs); }
  double converted(int code, int nibble, int shift) const {
    const auto n = static_cast<uint8_t>(nibble), c = static_cast<uint8_t>(code);
    return std::ldexp(static_cast<double>(e4m3_decode(nvfp4 ? e4m3_from_nvfp4(n, c, shift) : e4m3_from_mxfp4(n, c, shift))), -shift);
  }
};

using PairCounts = std::vector<int64_t>;  // [scale code][nibble]

PairCounts count_pairs(const SourceMatrix& m, const Fp4View& view) {
  std::vector<int64_t> by_byte(kCodes * kCodes, 0);  // [scale code][byte of two nibbles]
  const int64_t groups = m.rows * (m.cols / view.group), group_bytes = view.group / 2;
  const uint8_t* codes = m.codes;
  for (int64_t g = 0; g < groups; ++g, codes += group_bytes) {
    int64_t* row = &by_byte[static_cast<size_t>(m.scales[g]) * kCodes];
    for (int64_t i = 0; i < group_bytes; ++i) ++row[codes[i]];
  }
  PairCounts counts(kCodes * kNibbles, 0);
  for (size_t code = 0; code < kCodes; ++code) {
    for (size_t byte = 0; byte < kCodes; ++byte) {
      const int64_t count = by_byte[code * kCodes + byte];
      counts[code * kNibbles + (byte & 15)] += count;
      counts[code * kNibbles + (byte >> 4)] += count;
    }
  }
  return counts;
}

// Groups with a value that is too small for e4m3's normal numbers and not exact among its subnormals. `outside` has one bit a nibble.
int64_t count_outside(const SourceMatrix& m, const Fp4View& view, const std::vector<uint16_t>& outside) {
  const int64_t groups = m.rows * (m.cols / view.group), group_bytes = view.group / 2;
  int64_t count = 0;
  for (int64_t g = 0; g < groups; ++g) {
    const uint16_t mask = outside[m.scales[g]];
    if (mask == 0) continue;
    const uint8_t* codes = m.codes + g * group_bytes;
    bool hit = false;
    for (int64_t i = 0; i < group_bytes && !hit; ++i) hit = ((mask >> (codes[i] & 15)) & 1) != 0 || ((mask >> (codes[i] >> 4)) & 1) != 0;
    count += hit;
  }
  return count;
}

void cost_of_fp4(const SourceMatrix& m, ConversionCost& cost) {
  const Fp4View view(m.format);
  const PairCounts counts = count_pairs(m, view);
  cost.groups = m.rows * (m.cols / view.group);
  double max_abs = 0;
  for (int code = 0; code < kCodes; ++code) {
    if (view.is_nan(code)) continue;
    for (int n = 0; n < kNibbles; ++n) {
      if (counts[static_cast<size_t>(code * kNibbles + n)] > 0) max_abs = std::max(max_abs, std::fabs(view.value(code, n)));
    }
  }
  cost.shift = view.shift(max_abs);
  std::vector<uint16_t> outside(kCodes, 0);
  double squares = 0;
  for (int code = 0; code < kCodes; ++code) {
    if (view.is_nan(code)) continue;
    for (int n = 0; n < kNibbles; ++n) {
      const int64_t count = counts[static_cast<size_t>(code * kNibbles + n)];
      const double value = view.value(code, n);
      if (count == 0 || value == 0) continue;
      cost.nonzero_weights += count;
      const double converted = view.converted(code, n, cost.shift);
      if (converted == value) continue;
      const double relative = std::fabs(converted / value - 1);
      cost.rounded_weights += count;
      if (converted == 0) cost.underflows += count;
      cost.worst_relative_error = std::max(cost.worst_relative_error, relative);
      squares += static_cast<double>(count) * relative * relative;
      if (std::ldexp(std::fabs(value), cost.shift) < 0x1p-6) outside[static_cast<size_t>(code)] |= static_cast<uint16_t>(1u << n);
    }
  }
  cost.exact = cost.rounded_weights == 0;
  if (cost.nonzero_weights > 0) cost.rms_relative_error = std::sqrt(squares / static_cast<double>(cost.nonzero_weights));
  if (std::any_of(outside.begin(), outside.end(), [](uint16_t mask) { return mask != 0; })) {
    cost.groups_outside_window = count_outside(m, view, outside);
  }
}

void cost_of_fp8(const SourceMatrix& m, ConversionCost& cost) {
  for (int64_t row = 0; row < m.rows; ++row) {
    const uint8_t* codes = m.codes + row * m.cols;
    int64_t nonzero = 0;
    for (int64_t c = 0; c < m.cols; ++c) nonzero += (codes[c] & 0x7F) != 0 ? 1 : 0;
    cost.nonzero_weights += nonzero;
  }
  cost.groups = ((m.rows + 127) / 128) * ((m.cols + 127) / 128);
}

float scale_at(const SourceMatrix& m, int64_t index) {
  switch (m.scale_type) {
    case ScaleType::kE4m3:
      return e4m3_decode(m.scales[index]);
    case ScaleType::kE8m0:
      return e8m0_decode(m.scales[index]);
    case ScaleType::kBf16: {
      uint16_t bits;
      std::memcpy(&bits, m.scales + 2 * index, sizeof bits);
      return bf16_decode(bits);
    }
    default: {
      float value;
      std::memcpy(&value, m.scales + 4 * index, sizeof value);
      return value;
    }
  }
}

void count_scales(const SourceMatrix& m, int64_t columns, ConversionCost& cost) {
  for (int64_t i = 0; i < cost.groups; ++i) {
    const float scale = scale_at(m, i);
    if (std::isnan(scale))
      ++cost.nan_scales;
    else if (std::isinf(scale))
      ++cost.infinite_scales;
    else if (scale < 0)
      ++cost.negative_scales;
    else if (scale == 0 && cost.zero_scales++ == 0) {
      cost.first_zero_row = i / columns;
      cost.first_zero_column = i % columns;
    }
  }
}

}  // namespace

ConversionCost conversion_cost(const SourceMatrix& matrix) {
  ConversionCost cost;
  cost.weights = matrix.rows * matrix.cols;
  cost.bad_values = scan_matrix(matrix);
  if (matrix.format == WeightFormat::kBf16) {
    cost.converts = false;
    cost.exact = false;
    return cost;
  }
  if (matrix.format == WeightFormat::kFp8) {
    cost_of_fp8(matrix, cost);
    count_scales(matrix, (matrix.cols + 127) / 128, cost);
  } else {
    cost_of_fp4(matrix, cost);
    count_scales(matrix, matrix.cols / (matrix.format == WeightFormat::kNvfp4 ? 16 : 32), cost);
  }
  return cost;
}

}  // namespace monomoe
