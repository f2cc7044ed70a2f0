// The numbers a stored matrix stands for, exactly: every product of a code and its scales fits a double.
#pragma once

#include <cstdint>

#include "plan/source_matrix.h"

namespace monomoe {

// Writes matrix.cols values of one row.
void decode_row(const SourceMatrix& matrix, int64_t row, double* out);

// Scale `index` of an FP8 matrix, counted row by row over its grid.
double fp8_block_scale(const SourceMatrix& matrix, int64_t index);

}  // namespace monomoe
