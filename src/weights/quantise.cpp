// Scales are chosen per group or block from exact values; codes are rounded once, to nearest, ties to even.
#include "weights/quantise.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "plan/tiles.h"

namespace monomoe {
namespace {

void count(double before, double after, int64_t row, int64_t column, ConversionChange& change) {
  if (before == after) return;  // zeros of either sign are one value
  if (change.changed++ == 0) {
    change.first_row = row;
    change.first_column = column;
    change.first_before = before;
    change.first_after = after;
  }
  if (after == 0) ++change.underflows;
  const double relative = before == 0 ? 1.0 : std::fabs(after - before) / std::fabs(before);
  change.worst_relative_error = std::max(change.worst_relative_error, relative);
  change.squared_relative_error += relative * relative;
}

ConvertedMatrix fp4_matrix(const SourceMatrix& m, WeightFormat format, int64_t group) {
  ConvertedMatrix out;
  out.matrix.format = format;
  out.matrix.scale_type = format == WeightFormat::kNvfp4 ? ScaleType::kE4m3 : ScaleType::kE8m0;
  out.matrix.rows = m.rows;
  out.matrix.cols = m.cols;
  out.codes.resize(static_cast<size_t>(m.rows * m.cols / 2));
  out.scales.resize(static_cast<size_t>(m.rows * m.cols / group));
  out.matrix.codes = out.codes.data();
  out.matrix.scales = out.scales.data();
  out.change.weights = m.rows * m.cols;
  return out;
}

uint8_t e2m1_of(double value, double scale) {
  if (scale == 0) return std::signbit(value) ? 8 : 0;
  return e2m1_encode(static_cast<float>(value / scale));
}

// Codes of `group` values that share `scale`, into packed bytes.
void encode_group(const double* values, int64_t group, double scale, uint8_t* codes) {
  for (int64_t i = 0; i < group; i += 2) {
    codes[i / 2] = static_cast<uint8_t>(e2m1_of(values[i], scale) | e2m1_of(values[i + 1], scale) << 4);
  }
}

double group_error(const double* values, int64_t group, double scale) {
  double sum = 0;
  for (int64_t i = 0; i < group; ++i) {
    const double error = e2m1_decode(e2m1_of(values[i], scale)) * scale - values[i];
    sum += error * error;
  }
  return sum;
}

void count_group(const double* values, int64_t group, double scale, const uint8_t* codes, int64_t row, int64_t column,
                 ConversionChange& change) {
  for (int64_t i = 0; i < group; ++i) {
    const auto code = static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15);
    count(values[i], e2m1_decode(code) * scale, row, column + i, change);
  }
}

double largest_of(const double* values, int64_t number) {
  double largest = 0;
  for (int64_t i = 0; i < number; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

// The exponent e with which a group's largest value becomes 4 or 6, or the next larger one if that loses less; values beyond what the
// codes reach at 2^-127 and 2^127 take those.
uint8_t mxfp4_scale(const double* values, int64_t group) {
  const double largest = largest_of(values, group);
  if (largest == 0) return 127;
  const int exponent = std::clamp(std::ilogb(largest) - 2, -127, 127);
  const int next = std::min(exponent + 1, 127);
  const double here = group_error(values, group, std::ldexp(1.0, exponent));
  const bool better = here != 0 && group_error(values, group, std::ldexp(1.0, next)) < here;
  return static_cast<uint8_t>((better ? next : exponent) + 127);
}

// NVFP4 in which this pair of groups is MXFP4 already: both scales are one power of two. -1 if they are not.
int shared_power(const SourceMatrix& m, int64_t pair) {
  const uint8_t first = m.scales[2 * pair], second = m.scales[2 * pair + 1];
  if (first != second) return -1;
  const double scale = static_cast<double>(e4m3_decode(first)) * m.global_scale;
  int exponent = 0;
  if (!(scale > 0) || std::frexp(scale, &exponent) != 0.5) return -1;
  const int code = exponent - 1 + 127;
  return code >= 0 && code <= 254 ? code : -1;
}

// One block of up to 128 x 128 with the values of its rows in `values` [rows][stride].
struct Block {
  const double* values;
  int64_t rows, cols, stride;
  double at(int64_t row, int64_t col) const { return values[row * stride + col]; }
};

double block_error(const Block& block, double scale) {
  double sum = 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t c = 0; c < block.cols; ++c) {
      const double error = e4m3_decode(e4m3_encode(static_cast<float>(block.at(r, c) / scale))) * scale - block.at(r, c);
      sum += error * error;
    }
  }
  return sum;
}

// `base` times the power of two that brings the largest value as close to 448 as it goes.
float power_scale(double largest, double base) {
  int exponent = 0;
  const double fraction = std::frexp(largest / base / 448.0, &exponent);
  return static_cast<float>(std::ldexp(base, fraction == 0.5 ? exponent - 1 : exponent));
}

float fp8_scale(const Block& block, double base) {
  double largest = 0;
  for (int64_t r = 0; r < block.rows; ++r) largest = std::max(largest, largest_of(block.values + r * block.stride, block.cols));
  if (largest == 0) return 1.0f;
  constexpr float kSmallest = 0x1p-126f;
  const float power = std::max(power_scale(largest, base), kSmallest);
  const double error = block_error(block, power);
  if (error == 0) return power;
  const float fitted = std::max(static_cast<float>(largest / 448.0), kSmallest);
  return block_error(block, fitted) < error ? fitted : power;
}

// What the values of a block have in common beside powers of two: the global scale, or the first of its scales that is not zero.
double common_factor(const SourceMatrix& m, int64_t row, int64_t column, int64_t rows, int64_t cols) {
  if (m.format == WeightFormat::kNvfp4) return m.global_scale;
  if (m.format != WeightFormat::kFp8 || m.scale_type == ScaleType::kE8m0) return 1.0;
  const int64_t width = ceil_div(m.cols, m.scale_block);
  for (int64_t r = row; r < row + rows; r += m.scale_block) {
    for (int64_t c = column; c < column + cols; c += m.scale_block) {
      const double scale = fp8_block_scale(m, r / m.scale_block * width + c / m.scale_block);
      if (scale > 0) return scale;
    }
  }
  return 1.0;
}

}  // namespace

ConvertedMatrix cast_to_nvfp4(const SourceMatrix& m, float global) {
  ConvertedMatrix out = fp4_matrix(m, WeightFormat::kNvfp4, 16);
  out.matrix.global_scale = global;
  std::vector<double> row(static_cast<size_t>(m.cols));
  const int global_exponent = std::ilogb(global);
  for (int64_t r = 0; r < m.rows; ++r) {
    bool decoded = false;
    for (int64_t g = 0; g < m.cols / 32; ++g) {
      const int64_t index = r * (m.cols / 32) + g;
      const int exponent = m.scales[index] - 127 - global_exponent;
      // e4m3 has the powers of two from 2^-9 (subnormal) to 2^8. Larger ones belong to groups of zeros.
      const int used = std::clamp(exponent, -9, 8);
      const auto scale = static_cast<uint8_t>(used < -6 ? 1 << (used + 9) : (used + 7) << 3);
      out.scales[static_cast<size_t>(2 * index)] = out.scales[static_cast<size_t>(2 * index + 1)] = scale;
      uint8_t* codes = &out.codes[static_cast<size_t>(index * 16)];
      std::memcpy(codes, m.codes + index * 16, 16);
      if (exponent >= -9) continue;
      if (!decoded) decode_row(m, r, row.data());
      decoded = true;
      const double smallest = std::ldexp(1.0, global_exponent - 9);
      encode_group(&row[static_cast<size_t>(g * 32)], 32, smallest, codes);
      count_group(&row[static_cast<size_t>(g * 32)], 32, smallest, codes, r, g * 32, out.change);
    }
  }
  return out;
}

ConvertedMatrix quantise_to_nvfp4(const SourceMatrix& m, float global) {
  ConvertedMatrix out = fp4_matrix(m, WeightFormat::kNvfp4, 16);
  out.matrix.global_scale = global;
  std::vector<double> row(static_cast<size_t>(m.cols));
  for (int64_t r = 0; r < m.rows; ++r) {
    decode_row(m, r, row.data());
    for (int64_t g = 0; g < m.cols / 16; ++g) {
      const double* values = &row[static_cast<size_t>(g * 16)];
      const int64_t index = r * (m.cols / 16) + g;
      const uint8_t scale = e4m3_encode(static_cast<float>(largest_of(values, 16) / 6.0 / global));
      const double step = static_cast<double>(e4m3_decode(scale)) * global;
      uint8_t* codes = &out.codes[static_cast<size_t>(index * 8)];
      out.scales[static_cast<size_t>(index)] = scale;
      encode_group(values, 16, step, codes);
      count_group(values, 16, step, codes, r, g * 16, out.change);
    }
  }
  return out;
}

ConvertedMatrix quantise_to_mxfp4(const SourceMatrix& m) {
  ConvertedMatrix out = fp4_matrix(m, WeightFormat::kMxfp4, 32);
  std::vector<double> row(static_cast<size_t>(m.cols));
  for (int64_t r = 0; r < m.rows; ++r) {
    bool decoded = false;
    for (int64_t g = 0; g < m.cols / 32; ++g) {
      const int64_t index = r * (m.cols / 32) + g;
      uint8_t* codes = &out.codes[static_cast<size_t>(index * 16)];
      const int same = m.format == WeightFormat::kNvfp4 ? shared_power(m, index) : -1;
      if (same >= 0) {
        out.scales[static_cast<size_t>(index)] = static_cast<uint8_t>(same);
        std::memcpy(codes, m.codes + index * 16, 16);
        continue;
      }
      if (!decoded) decode_row(m, r, row.data());
      decoded = true;
      const double* values = &row[static_cast<size_t>(g * 32)];
      const uint8_t scale = mxfp4_scale(values, 32);
      const double step = std::ldexp(1.0, scale - 127);
      out.scales[static_cast<size_t>(index)] = scale;
      encode_group(values, 32, step, codes);
      count_group(values, 32, step, codes, r, g * 32, out.change);
    }
  }
  return out;
}

ConvertedMatrix quantise_to_fp8(const SourceMatrix& m) {
  ConvertedMatrix out;
  out.matrix.format = WeightFormat::kFp8;
  out.matrix.scale_type = ScaleType::kF32;
  out.matrix.rows = m.rows;
  out.matrix.cols = m.cols;
  out.change.weights = m.rows * m.cols;
  const int64_t width = ceil_div(m.cols, kBlockK);
  out.codes.resize(static_cast<size_t>(m.rows * m.cols));
  out.scales.resize(static_cast<size_t>(ceil_div(m.rows, kBlockK) * width * 4));
  std::vector<double> values(static_cast<size_t>(min_of(m.rows, kBlockK) * m.cols));
  for (int64_t top = 0; top < m.rows; top += kBlockK) {
    const int64_t rows = min_of(kBlockK, m.rows - top);
    for (int64_t r = 0; r < rows; ++r) decode_row(m, top + r, &values[static_cast<size_t>(r * m.cols)]);
    std::vector<float> scales;
    for (int64_t left = 0; left < m.cols; left += kBlockK) {
      const Block block{&values[static_cast<size_t>(left)], rows, min_of(kBlockK, m.cols - left), m.cols};
      scales.push_back(fp8_scale(block, common_factor(m, top, left, rows, block.cols)));
    }
    std::memcpy(&out.scales[static_cast<size_t>(top / kBlockK * width * 4)], scales.data(), scales.size() * 4);
    for (int64_t i = 0; i < rows * m.cols; ++i) {
      const double scale = scales[static_cast<size_t>(i % m.cols / kBlockK)], value = values[static_cast<size_t>(i)];
      const uint8_t code = e4m3_encode(static_cast<float>(value / scale));
      out.codes[static_cast<size_t>(top * m.cols + i)] = code;
      count(value, e4m3_decode(code) * scale, top + i / m.cols, i % m.cols, out.change);
    }
  }
  out.matrix.codes = out.codes.data();
  out.matrix.scales = out.scales.data();
  return out;
}

}  // namespace monomoe
