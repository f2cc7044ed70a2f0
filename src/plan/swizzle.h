// The 128-byte swizzle of shared-memory operands: 16-byte chunk c of row r stands at chunk c ^ (r mod 8), so that eight rows
// of one column lie in eight different banks (PTX ISA, matrix descriptor, swizzle mode 128B).
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace monomoe {

// Byte offset of (row, byte) in a tile of 128-byte rows.
MONOMOE_HD constexpr int64_t swizzle_128b(int64_t row, int64_t byte) {
  return row * 128 + (((byte / 16) ^ (row % 8)) * 16 + byte % 16);
}

}  // namespace monomoe
