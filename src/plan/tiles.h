// Sizes every layout shares: the K block of one scale, the weight tile, and small integer helpers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.h"

namespace monomoe {

inline constexpr int kBlockK = 128;       // K of one weight tile and of one activation scale
inline constexpr int kHalfRows = 128;     // weight rows of the smallest contiguous piece (prefill's tile)
inline constexpr int kTileRows = 256;     // weight rows of decode's tile: two halves side by side
inline constexpr int kInterleave = 8;     // gate and up rows alternate in runs of 8, so one thread holds both
inline constexpr int kRowGroup = 8;       // rows after which the swizzle repeats
inline constexpr int kRegionAlign = 1024; // every region of memory starts here: one 128-byte swizzle atom

// value / divisor, neither negative. A GPU divides 64-bit integers by a long subroutine; what fits 32 bits is divided as such.
MONOMOE_HD constexpr int64_t divide(int64_t value, int64_t divisor) {
  if (((value | divisor) >> 32) == 0) return static_cast<uint32_t>(value) / static_cast<uint32_t>(divisor);
  return value / divisor;
}
MONOMOE_HD constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
MONOMOE_HD constexpr int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }
MONOMOE_HD constexpr int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
MONOMOE_HD constexpr int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace monomoe
