// How far one correct backend's number may be from the exact one, step by step of the contract. docs/bounds.md derives every line.
#pragma once

#include <cstdint>

namespace monomoe::bounds {

inline constexpr double kFp32Unit = 0x1p-24;        // relative error of one rounding to fp32
inline constexpr double kFp32Underflow = 0x1p-150;  // and its absolute error among the subnormals
inline constexpr double kTruncation = 0x1p-13;      // the tensor core keeps 13 fractional bits
inline constexpr double kSlack = 1.0 + 0x1p-20;     // covers the float64 rounding of values and bounds themselves

// A value and how far a backend may be from it; an infinite bound says that fp32 may overflow there.
struct Bounded {
  double value = 0;
  double error = 0;
  double largest() const;  // no backend has a larger magnitude
};

// Exponents of e4m3 codes such that sums of two compare: 0 for a zero code, else 64 + max(1, exponent field).
uint8_t exponent_key(uint8_t code);
inline constexpr int kNoProduct = 128;  // a sum of keys below this has a zero factor

// One promotion block: the exact dot product of each of its four steps, how far a backend's dot product may be from it already
// (nullptr: not at all), the largest sum of exponent keys, and what a unit of the codes is worth at most.
// Returns the error that truncation adds, in the unit of `sums`.
double block_error(const double* sums, const double* slack, const uint8_t* keys, double unit);

// The promoted sum: adds a term that a backend knows up to `error`, by one fma.
void add_term(Bounded& sum, double term, double error);
// The finished sum times the matrix's multiplier, rounded once.
void multiply(Bounded& sum, double multiplier);

// silu(min(gate, limit)) * clamp(up, -limit, limit).
Bounded swiglu(const Bounded& gate, const Bounded& up, double limit);

// A group's e4m3 codes and stored scale.
struct GroupBounds {
  double largest = 0;   // of the group's magnitudes, from above: the scale is at most this / 448
  double smallest = 0;  // the same maximum, from below
};
GroupBounds group_bounds(const Bounded* values, int64_t count);
// code * stored scale against value * weight.
double stored_error(const Bounded& value, const GroupBounds& group, double weight);
// Key of the largest code a backend may have for this value.
uint8_t largest_key(const Bounded& value, const GroupBounds& group);
// The largest stored scale.
double stored_unit(const GroupBounds& group, double weight);

// Rounding to bf16, in place.
void round_to_bf16(Bounded& value);

}  // namespace monomoe::bounds
