// Format definitions, one element at a time.
#include "reference/decoded_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/weight_codes.h"
#include "plan/tiles.h"

namespace monomoe {

namespace {

int64_t group_columns(WeightFormat format) { return format == WeightFormat::kNvfp4 ? 16 : 32; }

uint8_t fp4_code(const SourceMatrix& m, int64_t index) { return m.codes[index / 2] >> (index % 2 * 4) & 15u; }

double fp4_scale(const SourceMatrix& m, uint8_t code) {
  return m.format == WeightFormat::kNvfp4 ? e4m3_decode(code) : e8m0_decode(code);
}

float stored_block_scale(const SourceMatrix& m, int64_t index) {
  if (m.scale_type == ScaleType::kE8m0) return e8m0_decode(m.scales[index]);
  if (m.scale_type == ScaleType::kBf16) {
    uint16_t code;
    std::memcpy(&code, m.scales + index * 2, 2);
    return bf16_decode(code);
  }
  float value;
  std::memcpy(&value, m.scales + index * 4, 4);
  return value;
}

// Calls visit(group index, code byte index) for every byte of two codes.
template <class Visit>
void for_each_byte(const SourceMatrix& m, Visit visit) {
  const int64_t group_bytes = group_columns(m.format) / 2;
  for (int64_t group = 0; group < m.rows * m.cols / 2 / group_bytes; ++group) {
    for (int64_t byte = group * group_bytes; byte < (group + 1) * group_bytes; ++byte) visit(group, byte);
  }
}

double largest_product(const SourceMatrix& m) {
  std::vector<uint8_t> present(256 * 16, 0);  // pairs of scale code and nibble
  for_each_byte(m, [&](int64_t group, int64_t byte) {
    uint8_t* nibbles = &present[m.scales[group] * 16];
    nibbles[m.codes[byte] & 15] = nibbles[m.codes[byte] >> 4] = 1;
  });
  double largest = 0;
  for (int pair = 0; pair < 256 * 16; ++pair) {
    if (present[pair] == 0) continue;
    const double scale = fp4_scale(m, static_cast<uint8_t>(pair / 16));
    const double product = std::fabs(e2m1_decode(static_cast<uint8_t>(pair % 16)) * scale);
    if (product > largest) largest = product;  // false for NaN
  }
  return largest;
}

void decode_fp4(const SourceMatrix& m, DecodedMatrix& out) {
  const bool is_nvfp4 = m.format == WeightFormat::kNvfp4;
  out.shift = is_nvfp4 ? nvfp4_shift(largest_product(m)) : mxfp4_shift(largest_product(m));
  out.multiplier = static_cast<float>(std::ldexp(is_nvfp4 ? double{m.global_scale} : 1.0, -out.shift));
  // Every (scale code, nibble) once: a matrix has far more elements than there are pairs.
  std::vector<uint8_t> converted(256 * 16);
  for (int pair = 0; pair < 256 * 16; ++pair) {
    const auto scale = static_cast<uint8_t>(pair / 16), nibble = static_cast<uint8_t>(pair % 16);
    converted[pair] = is_nvfp4 ? e4m3_from_nvfp4(nibble, scale == 0x80 ? 0 : scale, out.shift)  // -0 is packed as 0
                               : e4m3_from_mxfp4(nibble, scale, out.shift);
  }
  out.codes.resize(m.rows * m.cols);
  for_each_byte(m, [&](int64_t group, int64_t byte) {
    const uint8_t* nibbles = &converted[m.scales[group] * 16];
    out.codes[2 * byte] = nibbles[m.codes[byte] & 15];
    out.codes[2 * byte + 1] = nibbles[m.codes[byte] >> 4];
  });
}

}  // namespace

DecodedMatrix decode_matrix(const SourceMatrix& m) {
  DecodedMatrix out;
  out.rows = m.rows;
  out.cols = m.cols;
  if (m.format != WeightFormat::kFp8) {
    decode_fp4(m, out);
    return out;
  }
  out.codes.assign(m.codes, m.codes + m.rows * m.cols);
  out.block_scales.resize(ceil_div(m.rows, kBlockK) * ceil_div(m.cols, kBlockK));
  for (size_t i = 0; i < out.block_scales.size(); ++i) out.block_scales[i] = stored_block_scale(m, static_cast<int64_t>(i));
  return out;
}

void exact_row(const SourceMatrix& m, int64_t row, double* values) {
  for (int64_t col = 0; col < m.cols; ++col) {
    const int64_t index = row * m.cols + col;
    if (m.format == WeightFormat::kBf16) {
      uint16_t code;
      std::memcpy(&code, m.codes + index * 2, 2);
      values[col] = bf16_decode(code);
    } else if (m.format == WeightFormat::kFp8) {
      const int64_t block = row / kBlockK * ceil_div(m.cols, kBlockK) + col / kBlockK;
      values[col] = double{e4m3_decode(m.codes[index])} * stored_block_scale(m, block);
    } else {
      const double scale = fp4_scale(m, m.scales[index / group_columns(m.format)]);
      values[col] = e2m1_decode(fp4_code(m, index)) * scale * (m.format == WeightFormat::kNvfp4 ? double{m.global_scale} : 1.0);
    }
  }
}

}  // namespace monomoe
