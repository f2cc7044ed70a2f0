// E8M0: a power of two 2^(code - 127); code 255 is NaN. There is no zero: code 0 is 2^-127, an fp32 subnormal.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"

namespace monomoe {

constexpr std::uint8_t kE8m0NaN = 0xFF;

MONOMOE_HD constexpr float e8m0_decode(std::uint8_t code) {
  if (code == kE8m0NaN) return fp32_nan();
  return code == 0 ? bits_float(0x00400000u) : bits_float(static_cast<std::uint32_t>(code) << 23);
}

// The code of an exact power of two in 2^-127..2^127. Anything else has no code and gives kE8m0NaN rather than a near miss.
MONOMOE_HD constexpr std::uint8_t e8m0_encode(float value) {
  const std::uint32_t bits = float_bits(value);
  if (bits == 0x00400000u) return 0;
  const bool power = (bits & 0x807FFFFFu) == 0 && bits != 0;
  return power ? static_cast<std::uint8_t>(bits >> 23) : kE8m0NaN;
}

}  // namespace monomoe
