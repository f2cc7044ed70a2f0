// BF16: the upper half of an fp32.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"

namespace monomoe {

constexpr std::uint16_t kBf16NaN = 0x7FFF;

MONOMOE_HD constexpr float bf16_decode(std::uint16_t code) { return bits_float(static_cast<std::uint32_t>(code) << 16); }

MONOMOE_HD constexpr bool bf16_is_finite(std::uint16_t code) { return (code & 0x7F80u) != 0x7F80u; }

// Round to nearest, ties to even; a value that rounds past the largest becomes infinity; every NaN becomes kBf16NaN.
MONOMOE_HD constexpr std::uint16_t bf16_encode(float value) {
  const std::uint32_t bits = float_bits(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return magnitude_bits(value) > kFp32InfinityBits ? kBf16NaN : static_cast<std::uint16_t>(rounded);
}

}  // namespace monomoe
