// Rows along K arranged so that the 32 elements of each tensor-core step stand together, and the dot products over them.
#pragma once

#include <array>
#include <cstdint>

#include "numerics/tensor_core.h"
#include "plan/tiles.h"

namespace monomoe {

// Where logical k stands: within each 128 the steps one after the other.
inline constexpr auto kStepPositions = [] {
  std::array<uint8_t, kBlockK> positions{};
  for (int k = 0; k < kBlockK; ++k) positions[k] = static_cast<uint8_t>(permuted_k(k));
  return positions;
}();
inline int64_t step_position(int64_t k) { return (k & -kBlockK) + kStepPositions[k & (kBlockK - 1)]; }

// Sums of products, one for each step. e4m3 times e4m3 is exact here, in any order.
inline void step_dots(const double* a, const double* b, int64_t steps, double* sums) {
  for (int64_t step = 0; step < steps; ++step) {
    double lanes[8] = {};
    for (int k = 0; k < kStepK; k += 8) {
      for (int lane = 0; lane < 8; ++lane) lanes[lane] += a[step * kStepK + k + lane] * b[step * kStepK + k + lane];
    }
    sums[step] = ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
  }
}

// The largest sum of exponent keys (error_bounds.hpp) of each step.
inline void step_keys(const uint8_t* a, const uint8_t* b, int64_t steps, uint8_t* keys) {
  for (int64_t step = 0; step < steps; ++step) {
    uint8_t largest = 0;
    for (int k = 0; k < kStepK; ++k) {
      const auto sum = static_cast<uint8_t>(a[step * kStepK + k] + b[step * kStepK + k]);
      largest = sum > largest ? sum : largest;
    }
    keys[step] = largest;
  }
}

}  // namespace monomoe
