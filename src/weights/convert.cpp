// Chooses per matrix between keeping, casting and quantising; the quantisers themselves are in quantise.cpp.
#include "weights/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weights/quantise.hpp"

namespace monomoe {
namespace {

constexpr int64_t kRunBlock = 128;

bool keeps(const SourceMatrix& m, WeightFormat format) {
  return m.format == format && (format != WeightFormat::kFp8 || m.scale_block == kRunBlock);
}

ConvertedMatrix kept(const SourceMatrix& m) {
  ConvertedMatrix out;
  out.matrix = m;
  out.change.weights = m.rows * m.cols;
  return out;
}

bool is_zero_group(const uint8_t* codes, int64_t bytes) {
  return std::all_of(codes, codes + bytes, [](uint8_t pair) { return (pair & 0x77) == 0; });
}

// The largest scale exponent among MXFP4 groups that are not all zero; INT_MIN if there is none.
int largest_exponent(const SourceMatrix& m) {
  int largest = INT32_MIN;
  for (int64_t g = 0; g < m.rows * m.cols / 32; ++g) {
    const int exponent = m.scales[g] - 127;
    if (exponent > largest && !is_zero_group(m.codes + g * 16, 16)) largest = exponent;
  }
  return largest;
}

// 2^-8 for a matrix of zeros: any legal global scale serves there.
float global_of_exponent(int largest) { return static_cast<float>(std::ldexp(1.0, largest == INT32_MIN ? -8 : largest - 8)); }

double largest_magnitude(const SourceMatrix& m) {
  std::vector<double> row(static_cast<size_t>(m.cols));
  double largest = 0;
  for (int64_t r = 0; r < m.rows; ++r) {
    decode_row(m, r, row.data());
    for (const double value : row) largest = std::max(largest, std::fabs(value));
  }
  return largest;
}

// One global scale for matrices that are used together.
float nvfp4_global(std::initializer_list<const SourceMatrix*> matrices) {
  const bool cast = (*matrices.begin())->format == WeightFormat::kMxfp4;
  int exponent = INT32_MIN;
  double largest = 0;
  for (const SourceMatrix* m : matrices) {
    if (cast) {
      exponent = std::max(exponent, largest_exponent(*m));
    } else {
      largest = std::max(largest, largest_magnitude(*m));
    }
  }
  if (cast) return global_of_exponent(exponent);
  const auto global = static_cast<float>(largest / (6.0 * 448.0));
  return global > 0 ? global : global_of_exponent(INT32_MIN);
}

ConvertedMatrix to_nvfp4(const SourceMatrix& m, float global) {
  return m.format == WeightFormat::kMxfp4 ? cast_to_nvfp4(m, global) : quantise_to_nvfp4(m, global);
}

ConvertedMatrix convert_alone(const SourceMatrix& m, WeightFormat format) {
  if (keeps(m, format)) return kept(m);
  if (format == WeightFormat::kFp8) return quantise_to_fp8(m);
  return format == WeightFormat::kMxfp4 ? quantise_to_mxfp4(m) : to_nvfp4(m, nvfp4_global({&m}));
}

}  // namespace

void ConversionChange::add(const ConversionChange& more) {
  if (first_row < 0) {
    first_row = more.first_row;
    first_column = more.first_column;
    first_before = more.first_before;
    first_after = more.first_after;
  }
  weights += more.weights;
  changed += more.changed;
  underflows += more.underflows;
  worst_relative_error = std::max(worst_relative_error, more.worst_relative_error);
  squared_relative_error += more.squared_relative_error;
}

ConvertedExpert convert_expert(const SourceExpert& expert, WeightFormat format) {
  ConvertedExpert out;
  const bool share = format == WeightFormat::kNvfp4 && !keeps(expert.gate, format) && !keeps(expert.up, format);
  if (share) {
    const float global = nvfp4_global({&expert.gate, &expert.up});
    out.gate = to_nvfp4(expert.gate, global);
    out.up = to_nvfp4(expert.up, global);
  } else {
    out.gate = convert_alone(expert.gate, format);
    out.up = convert_alone(expert.up, format);
  }
  out.down = convert_alone(expert.down, format);
  return out;
}

}  // namespace monomoe
