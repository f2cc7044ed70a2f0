// The tests' own idea of encoding: search a table of exact values for the nearest, ties to the even code. No bit tricks shared with src.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace monomoe::test_support {

// Values of the non-negative codes in ascending order, written from the format's definition.
inline std::vector<double> float_table(int exponent_bits, int mantissa_bits, int bias, int codes) {
  std::vector<double> values;
  for (int code = 0; code < codes; ++code) {
    const int field = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double fraction = static_cast<double>(code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits);
    values.push_back(field == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, field - bias));
  }
  return values;
}

inline const std::vector<double>& e4m3_values() {
  static const std::vector<double> values = float_table(4, 3, 7, 127);
  return values;
}

inline const std::vector<double>& e2m1_values() {
  static const std::vector<double> values = float_table(2, 1, 1, 8);
  return values;
}

// The code of |value| without the sign; beyond the last value it stays the last one.
inline int nearest_code(const std::vector<double>& values, double value) {
  const double magnitude = std::min(std::fabs(value), values.back());
  int best = 0;
  for (int code = 1; code < static_cast<int>(values.size()); ++code) {
    const double now = std::fabs(values[code] - magnitude), before = std::fabs(values[best] - magnitude);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

inline std::uint8_t nearest_e4m3(double value) {
  if (std::isnan(value)) return 0x7F;
  return static_cast<std::uint8_t>(nearest_code(e4m3_values(), value) | (std::signbit(value) ? 0x80 : 0));
}

inline std::uint8_t nearest_e2m1(double value) {
  return static_cast<std::uint8_t>(nearest_code(e2m1_values(), value) | (std::signbit(value) ? 8 : 0));
}

}  // namespace monomoe::test_support
