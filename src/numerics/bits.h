// Bit views of fp32 values and exact powers of two, usable in constant expressions, on the host and on the device.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace monomoe {

// The one NaN this library writes wherever a NaN is stored as fp32; a payload that came from elsewhere is never passed on.
constexpr std::uint32_t kFp32NaNBits = 0x7FFFFFFFu;
constexpr std::uint32_t kFp32InfinityBits = 0x7F800000u;

MONOMOE_HD constexpr std::uint32_t float_bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }
MONOMOE_HD constexpr float bits_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

MONOMOE_HD constexpr std::uint32_t magnitude_bits(float value) { return float_bits(value) & 0x7FFFFFFFu; }
MONOMOE_HD constexpr bool is_finite(float value) { return magnitude_bits(value) < kFp32InfinityBits; }
MONOMOE_HD constexpr bool is_nan(float value) { return magnitude_bits(value) > kFp32InfinityBits; }
MONOMOE_HD constexpr float fp32_nan() { return bits_float(kFp32NaNBits); }
MONOMOE_HD constexpr float fp32_infinity() { return bits_float(kFp32InfinityBits); }

// A choice without control flow: a compiler may turn ?: back into a branch around floating-point work, which stops vectorisation.
MONOMOE_HD constexpr std::uint32_t select_bits(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// 2^exponent, exact over the whole fp32 range including subnormals; above it +inf, below it +0.
MONOMOE_HD constexpr float power_of_two(int exponent) {
  if (exponent > 127) return fp32_infinity();
  if (exponent >= -126) return bits_float(static_cast<std::uint32_t>(exponent + 127) << 23);
  if (exponent >= -149) return bits_float(std::uint32_t{1} << (exponent + 149));
  return 0.0f;
}

}  // namespace monomoe
