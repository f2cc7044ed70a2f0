// Comparisons are over values in float64 or over raw bits; neither has a tolerance of its own.
#include "reference/compare.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "numerics/e4m3.h"
#include "plan/tiles.h"

namespace monomoe {

namespace {

// How much of its bound an element uses: above 1 is outside. Without a bound: the difference itself.
double share_used(double got, double want, const double* bound) {
  if (std::isnan(want) || std::isnan(got)) {
    const bool unknown = bound != nullptr && std::isinf(*bound) && !std::isnan(want);
    return std::isnan(want) == std::isnan(got) || unknown ? 0.0 : std::numeric_limits<double>::infinity();
  }
  const double difference = got == want ? 0.0 : std::fabs(got - want);
  if (bound == nullptr || difference == 0) return difference;
  if (std::isinf(*bound)) return 0.0;
  return *bound > 0 ? difference / *bound : std::numeric_limits<double>::infinity();
}

struct Sums {
  double got_got = 0, want_want = 0, got_want = 0, difference = 0;
  int64_t count = 0;
  void add(double got, double want) {
    if (!std::isfinite(got) || !std::isfinite(want)) return;
    ++count;
    got_got += got * got;
    want_want += want * want;
    got_want += got * want;
    difference += (got - want) * (got - want);
  }
};

template <class T, class Bits, class Value>
BitDifference compare_bits(std::span<const T> got, std::span<const T> want, int64_t columns, Bits bits, Value value) {
  BitDifference result;
  result.elements = static_cast<int64_t>(want.size());
  for (int64_t i = 0; i < result.elements; ++i) {
    if (bits(got[i]) == bits(want[i])) continue;
    if (result.different++ > 0) continue;
    result.row = i / columns;
    result.column = i % columns;
    result.got_bits = bits(got[i]);
    result.want_bits = bits(want[i]);
    result.got_value = value(got[i]);
    result.want_value = value(want[i]);
  }
  return result;
}

}  // namespace

Comparison compare_values(std::span<const double> got, std::span<const double> want, std::span<const double> bounds, int64_t columns) {
  Comparison result;
  result.elements = static_cast<int64_t>(want.size());
  Sums sums;
  double worst_share = -1;
  for (int64_t i = 0; i < result.elements; ++i) {
    sums.add(got[i], want[i]);
    const double share = share_used(got[i], want[i], bounds.empty() ? nullptr : &bounds[i]);
    if (!bounds.empty() && std::isinf(bounds[i]) && !std::isnan(want[i])) ++result.unjudged;
    if (share > 1 && !bounds.empty() && result.outside_bound++ == 0) result.first_outside = i;
    if (share <= worst_share) continue;
    worst_share = share;
    result.worst = {i / columns, i % columns, got[i], want[i], bounds.empty() ? 0.0 : bounds[i]};
  }
  result.compared = sums.count;
  const double norms = std::sqrt(sums.got_got) * std::sqrt(sums.want_want);
  const double both = sums.got_got + sums.want_want;
  if (norms > 0) result.cosine = sums.got_want / norms;
  if (norms == 0 && both > 0) result.cosine = 0;
  if (both > 0) result.calc_diff = 1 - 2 * sums.got_want / both;
  if (sums.difference > 0) result.rms_relative = std::sqrt(sums.difference / sums.want_want);
  return result;
}

std::string describe(const Comparison& c) {
  const std::string numbers = fmt::format("cosine {:.9f}, calc_diff {:.3g}, rms relative {:.3g}", c.cosine, c.calc_diff, c.rms_relative);
  if (c.worst.row < 0) return fmt::format("{} elements", c.elements);
  return fmt::format("{} of {} elements outside the bound; worst at row {}, column {}: got {:.9g}, want {:.9g} +- {:.3g}; {}",
                     c.outside_bound, c.elements, c.worst.row, c.worst.column, c.worst.got, c.worst.want, c.worst.bound, numbers);
}

std::vector<double> values_of_bf16(std::span<const uint16_t> codes) {
  std::vector<double> values(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) values[i] = bf16_decode(codes[i]);
  return values;
}

std::vector<double> values_of_groups(std::span<const uint8_t> codes, std::span<const float> scales, int64_t columns) {
  const int64_t padded = round_up(columns, kBlockK);
  const int64_t rows = static_cast<int64_t>(codes.size()) / padded;
  std::vector<double> values(rows * columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < columns; ++col) {
      const double scale = scales[(row * padded + col) / kBlockK];
      values[row * columns + col] = double{e4m3_decode(codes[row * padded + col])} * scale;
    }
  }
  return values;
}

BitDifference compare_bf16_bits(std::span<const uint16_t> got, std::span<const uint16_t> want, int64_t columns) {
  return compare_bits(got, want, columns, [](uint16_t code) { return uint32_t{code}; }, [](uint16_t code) { return bf16_decode(code); });
}

BitDifference compare_e4m3_bits(std::span<const uint8_t> got, std::span<const uint8_t> want, int64_t columns) {
  return compare_bits(got, want, columns, [](uint8_t code) { return uint32_t{code}; }, [](uint8_t code) { return e4m3_decode(code); });
}

BitDifference compare_fp32_bits(std::span<const float> got, std::span<const float> want, int64_t columns) {
  return compare_bits(got, want, columns, [](float value) { return float_bits(value); }, [](float value) { return value; });
}

std::string describe(const BitDifference& d) {
  if (d.ok()) return fmt::format("{} elements, the same bits", d.elements);
  return fmt::format("{} of {} elements differ; first at row {}, column {}: got {:#x} ({:.9g}), want {:#x} ({:.9g})", d.different,
                     d.elements, d.row, d.column, d.got_bits, d.got_value, d.want_bits, d.want_value);
}

}  // namespace monomoe
