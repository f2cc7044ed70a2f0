// Every function returns a bound that is never smaller than the true error; where fp32 or bf16 may overflow it is infinite.
#include "reference/error_bounds.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "numerics/activation_quant.h"
#include "numerics/e4m3.h"

namespace monomoe::bounds {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFp32Largest = 0x1.fffffep127;
constexpr double kBf16Largest = 0x1.fep127;

// A NaN bound (infinity times zero) stands for "unknown".
double checked(double error) { return std::isnan(error) ? kInfinity : error; }

void check_overflow(Bounded& x, double largest) {
  x.error = checked(x.error);
  if (x.largest() > largest) x.error = kInfinity;
}

// 2^(key - kNoProduct - 14): keys carry the exponent fields of both codes, biased by 7 each. No sum of keys exceeds 158.
constexpr auto kProductPowers = [] {
  std::array<double, 159 - kNoProduct> powers{};
  double power = 0x1p-14;
  for (double& entry : powers) {
    entry = power;
    power *= 2;
  }
  return powers;
}();

double silu(double x) { return x / (1.0 + std::exp(-x)); }

}  // namespace

double Bounded::largest() const { return std::fabs(value) + error; }

uint8_t exponent_key(uint8_t code) {
  if ((code & 0x7F) == 0) return 0;
  return static_cast<uint8_t>(64 + std::max(1, code >> 3 & 15));
}

double block_error(const double* sums, const double* slack, const uint8_t* keys, double unit) {
  double exact = 0, known = 0, error = 0;
  for (int step = 0; step < 4; ++step) {
    const double accumulator = std::fabs(exact) + known + error;
    exact += sums[step];
    known += slack == nullptr ? 0.0 : slack[step];
    if (keys[step] < kNoProduct) continue;  // nothing is added, and the accumulator has 13 bits already
    const double largest_product = unit * kProductPowers[keys[step] - kNoProduct];
    const int terms = step == 0 ? 32 : 33;
    error += terms * kTruncation * std::max(largest_product, accumulator);
    error += kTruncation * (std::fabs(exact) + known + error);
  }
  return checked(error);
}

void add_term(Bounded& sum, double term, double error) {
  sum.value += term;
  sum.error += error;
  sum.error += kFp32Unit * sum.largest() + kFp32Underflow;
  check_overflow(sum, kFp32Largest);
}

void multiply(Bounded& sum, double multiplier) {
  sum.value *= multiplier;
  sum.error *= std::fabs(multiplier);
  sum.error += kFp32Unit * sum.largest() + kFp32Underflow;
  check_overflow(sum, kFp32Largest);
}

Bounded swiglu(const Bounded& gate, const Bounded& up, double limit) {
  // Clamping moves two values no further apart.
  const double g = gate.value > limit ? limit : gate.value;
  const double u = up.value > limit ? limit : up.value < -limit ? -limit : up.value;
  const double s = silu(g);
  // |silu'(x)| <= sigmoid(x) (1 + |x|), and <= 1.1 everywhere.
  const double high = std::min(g + gate.error, limit);
  const double reach = std::max(std::fabs(g - gate.error), std::fabs(high));
  const double slope = std::min(1.1, (1.0 + reach) / (1.0 + std::exp(-high)));
  const double moved = checked(slope * gate.error);
  // Exponential (2 ulp), addition, division: below 2^-21 relative. Where the exponential overflows silu itself is below 2^-121.
  const double silu_error = moved + 0x1p-21 * (std::fabs(s) + moved) + 0x1p-121;
  Bounded h;
  h.value = s * u;
  h.error = checked(std::fabs(s) * up.error) + checked(std::fabs(u) * silu_error) + checked(silu_error * up.error);
  h.error += kFp32Unit * h.largest() + kFp32Underflow;
  h.error *= kSlack;
  check_overflow(h, kFp32Largest);
  return h;
}

GroupBounds group_bounds(const Bounded* values, int64_t count) {
  GroupBounds group{kMinAmax, kMinAmax};
  for (int64_t i = 0; i < count; ++i) {
    group.largest = std::max(group.largest, values[i].largest());
    group.smallest = std::max(group.smallest, std::fabs(values[i].value) - values[i].error);
  }
  return group;
}

double stored_error(const Bounded& value, const GroupBounds& group, double weight) {
  const double unit = group.largest / kE4m3Max;
  const double rounding = std::max(0x1p-4 * value.largest(), 0x1p-10 * unit) + 0x1p-21 * value.largest();
  const double decoded = value.error + rounding;
  const double error = std::fabs(weight) * (decoded + kFp32Unit * (std::fabs(value.value) + decoded));
  return checked(error * kSlack + kE4m3Max * kFp32Underflow);
}

uint8_t largest_key(const Bounded& value, const GroupBounds& group) {
  const double scaled = value.largest() * kE4m3Max / group.smallest * kSlack;
  return exponent_key(scaled < kE4m3Max ? e4m3_encode(static_cast<float>(scaled)) : kE4m3MaxCode);
}

double stored_unit(const GroupBounds& group, double weight) {
  return checked(group.largest / kE4m3Max * std::fabs(weight)) * kSlack + kFp32Underflow;
}

void round_to_bf16(Bounded& value) {
  value.error = (value.error + 0x1p-8 * value.largest()) * kSlack + 0x1p-134;
  check_overflow(value, kBf16Largest);
}

}  // namespace monomoe::bounds
