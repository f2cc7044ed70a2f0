// Two comparisons: against float64 values with a bound per element, and bit against bit.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace monomoe {

// The element that uses up most of its bound, or the first that should be NaN and is not (or the other way round).
struct WorstElement {
  int64_t row = -1, column = -1;  // -1: nothing compared
  double got = 0, want = 0, bound = 0;
};

struct Comparison {
  int64_t elements = 0;
  int64_t outside_bound = 0;
  int64_t first_outside = -1;  // flat index
  int64_t unjudged = 0;        // without a finite bound, though the value wanted is a number
  int64_t compared = 0;        // finite on both sides
  WorstElement worst;
  // Over elements that are finite on both sides; 1, 0 and 0 where both sides are all zero.
  double cosine = 1;
  double calc_diff = 0;     // 1 - 2 sum(xy) / sum(x^2 + y^2)
  double rms_relative = 0;  // root of sum((x - y)^2) / sum(y^2), y wanted

  bool ok() const { return outside_bound == 0; }
};

// Rows of `columns` elements. bounds may be empty: then nothing is outside and `worst` is the largest difference.
Comparison compare_values(std::span<const double> got, std::span<const double> want, std::span<const double> bounds, int64_t columns);
std::string describe(const Comparison& comparison);

std::vector<double> values_of_bf16(std::span<const uint16_t> codes);
// e4m3 codes [rows, columns rounded up to 128] and a scale per 128 -> values [rows, columns].
std::vector<double> values_of_groups(std::span<const uint8_t> codes, std::span<const float> scales, int64_t columns);

struct BitDifference {
  int64_t elements = 0;
  int64_t different = 0;
  int64_t row = -1, column = -1;          // of the first difference
  uint32_t got_bits = 0, want_bits = 0;
  double got_value = 0, want_value = 0;

  bool ok() const { return different == 0; }
};

// Equal sizes are the caller's duty. Bits, not values: -0 is not 0, and a NaN equals only itself.
BitDifference compare_bf16_bits(std::span<const uint16_t> got, std::span<const uint16_t> want, int64_t columns);
BitDifference compare_e4m3_bits(std::span<const uint8_t> got, std::span<const uint8_t> want, int64_t columns);
BitDifference compare_fp32_bits(std::span<const float> got, std::span<const float> want, int64_t columns);
std::string describe(const BitDifference& difference);

}  // namespace monomoe
