// A checkpoint matrix as the kernels see it: e4m3 codes in logical order, block scales and one multiplier; and its exact values.
// Written element by element from the format definitions, apart from the packer, so that the two check each other.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/source_matrix.h"

namespace monomoe {

struct DecodedMatrix {
  int64_t rows = 0, cols = 0;
  std::vector<uint8_t> codes;       // e4m3 [rows, cols]
  std::vector<float> block_scales;  // FP8: [ceil(rows / 128), ceil(cols / 128)]; empty for FP4
  float multiplier = 1.0f;          // of a finished sum; 1 for FP8
  int shift = 0;                    // power of two inside the codes (FP4)

  bool has_block_scales() const { return !block_scales.empty(); }
  float block_scale(int64_t row, int64_t k_block) const { return block_scales[row / 128 * ((cols + 127) / 128) + k_block]; }
};
DecodedMatrix decode_matrix(const SourceMatrix& matrix);

// One row's exact weights, code * scale * global scale, without the rounding to e4m3. BF16 too.
void exact_row(const SourceMatrix& matrix, int64_t row, double* values);

}  // namespace monomoe
