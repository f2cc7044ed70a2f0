// One table look-up and one product per weight.
#include "weights/matrix_values.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"

namespace monomoe {
namespace {

template <class T>
T read_as(const uint8_t* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

const std::array<double, 256>& e4m3_values() {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> table{};
    for (int code = 0; code < 256; ++code) table[static_cast<size_t>(code)] = e4m3_decode(static_cast<uint8_t>(code));
    return table;
  }();
  return values;
}

double scale_value(const SourceMatrix& m, int64_t index) {
  switch (m.scale_type) {
    case ScaleType::kF32:
      return read_as<float>(m.scales + index * 4);
    case ScaleType::kBf16:
      return bf16_decode(read_as<uint16_t>(m.scales + index * 2));
    case ScaleType::kE8m0:
      return e8m0_decode(m.scales[index]);
    case ScaleType::kE4m3:
      return e4m3_values()[m.scales[index]];
    case ScaleType::kNone:
      break;
  }
  return 1.0;
}

void decode_fp8(const SourceMatrix& m, int64_t row, double* out) {
  const auto& values = e4m3_values();
  const int64_t blocks = (m.cols + m.scale_block - 1) / m.scale_block;
  for (int64_t block = 0; block < blocks; ++block) {
    const double scale = scale_value(m, row / m.scale_block * blocks + block);
    const int64_t end = std::min(m.cols, (block + 1) * m.scale_block);
    for (int64_t col = block * m.scale_block; col < end; ++col) out[col] = values[m.codes[row * m.cols + col]] * scale;
  }
}

void decode_fp4(const SourceMatrix& m, int64_t row, double* out) {
  const int64_t group = m.format == WeightFormat::kNvfp4 ? 16 : 32;
  for (int64_t g = 0; g < m.cols / group; ++g) {
    const double scale = scale_value(m, row * (m.cols / group) + g) * m.global_scale;
    const uint8_t* codes = m.codes + (row * m.cols + g * group) / 2;
    for (int64_t i = 0; i < group; i += 2) {
      out[g * group + i] = e2m1_decode(codes[i / 2] & 15) * scale;
      out[g * group + i + 1] = e2m1_decode(codes[i / 2] >> 4) * scale;
    }
  }
}

}  // namespace

double fp8_block_scale(const SourceMatrix& m, int64_t index) { return scale_value(m, index); }

void decode_row(const SourceMatrix& m, int64_t row, double* out) {
  switch (m.format) {
    case WeightFormat::kFp8:
      return decode_fp8(m, row, out);
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return decode_fp4(m, row, out);
    case WeightFormat::kBf16:
      for (int64_t col = 0; col < m.cols; ++col) out[col] = bf16_decode(read_as<uint16_t>(m.codes + (row * m.cols + col) * 2));
  }
}

}  // namespace monomoe
