// FP4 E2M1: +-{0, 0.5, 1, 1.5, 2, 3, 4, 6}; no infinity, no NaN.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "numerics/bits.h"
#include "numerics/fp32.h"

namespace monomoe {

constexpr float kE2m1Max = 6.0f;

// Exact; only the low four bits are read.
MONOMOE_HD constexpr float e2m1_decode(std::uint8_t nibble) {
  const std::uint32_t magnitude = nibble & 7u;
  const std::uint32_t sign = (nibble & 8u) << 28;
  const std::uint32_t normal = (magnitude + (126u << 1)) << 22;
  const std::uint32_t subnormal = magnitude == 0 ? 0u : 0x3F000000u;
  return bits_float((magnitude < 2 ? subnormal : normal) | sign);
}

// Round to nearest, ties to the even code; beyond 6 (infinity included) saturates; the sign of zero is kept. There is no NaN
// code: NaN becomes +6, as the hardware conversion does, so callers reject NaN before they get here.
MONOMOE_HD constexpr std::uint8_t e2m1_encode(float value) {
  const std::uint32_t magnitude = magnitude_bits(value);
  const std::uint32_t sign = (float_bits(value) >> 28) & 8u;
  const std::uint32_t rounded = ((magnitude + 0x1FFFFFu + ((magnitude >> 22) & 1u)) >> 22) - (126u << 1);
  // Below 1 the sum's last bit weighs 0.5, so the addition itself rounds.
  const bool is_small = magnitude < 0x3F800000u;
  const std::uint32_t small_bits = select_bits(is_small, magnitude, 0u);
  const std::uint32_t small = float_bits(add_rn(bits_float(small_bits), 4194304.0f)) - 0x4A800000u;
  const std::uint32_t saturated = rounded > 7u ? 7u : rounded;
  const std::uint32_t finite = sign | select_bits(is_small, small, saturated);
  return static_cast<std::uint8_t>(select_bits(magnitude > kFp32InfinityBits, 7u, finite));
}

}  // namespace monomoe
