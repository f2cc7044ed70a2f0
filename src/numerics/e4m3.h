// FP8 E4M3 (the "fn" variant: bias 7, largest value 448, no infinity, 0x7F and 0xFF are NaN).
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/fp32.h"

namespace monomoe {

constexpr float kE4m3Max = 448.0f;
constexpr std::uint8_t kE4m3MaxCode = 0x7E;
constexpr std::uint8_t kE4m3NaN = 0x7F;

MONOMOE_HD constexpr bool e4m3_is_nan(std::uint8_t code) { return (code & 0x7F) == kE4m3NaN; }

// Exact. A normal code's bits, moved to the fp32 position, only need the exponent rebased from 7 to 127.
MONOMOE_HD constexpr float e4m3_decode(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  const std::uint32_t sign = (code & 0x80u) << 24;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const std::uint32_t subnormal = float_bits(mul_rn(static_cast<float>(static_cast<std::int32_t>(magnitude)), 0x1p-9f));
  const std::uint32_t finite = sign | select_bits(magnitude < 8, subnormal, normal);
  return bits_float(select_bits(magnitude == kE4m3NaN, kFp32NaNBits, finite));
}

// Round to nearest, ties to even; beyond 448 (infinity included) saturates; the sign of zero is kept; any NaN gives 0x7F.
MONOMOE_HD constexpr std::uint8_t e4m3_encode(float value) {
  const std::uint32_t magnitude = magnitude_bits(value);
  const std::uint32_t sign = (float_bits(value) >> 24) & 0x80u;
  // Normal codes: add half a unit of the last kept bit (one less for an even one), then rebase the exponent from 127 to 7.
  const std::uint32_t rounded = ((magnitude + 0x7FFFFu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  // Subnormal codes: the sum's last bit weighs 2^-9, so the addition itself rounds to a multiple of it.
  const bool is_small = magnitude < 0x3C800000u;
  const std::uint32_t small_bits = select_bits(is_small, magnitude, 0u);
  const std::uint32_t small = float_bits(add_rn(bits_float(small_bits), 16384.0f)) - 0x46800000u;
  const std::uint32_t saturated = rounded > kE4m3MaxCode ? std::uint32_t{kE4m3MaxCode} : rounded;
  const std::uint32_t finite = sign | select_bits(is_small, small, saturated);
  return static_cast<std::uint8_t>(select_bits(magnitude > kFp32InfinityBits, kE4m3NaN, finite));
}

}  // namespace monomoe
