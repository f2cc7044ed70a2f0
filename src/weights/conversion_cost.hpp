// What it costs to turn a stored matrix into the kernel's e4m3 codes: nothing for FP8, a rounding for some FP4 values.
#pragma once

#include <cstdint>

#include "plan/source_matrix.h"
#include "weights/scan.hpp"

namespace monomoe {

struct ConversionCost {
  bool converts = true;  // false for BF16: it must be quantised first; then only weights and bad_values are set
  bool exact = true;     // every weight keeps its value
  int shift = 0;         // the power of two the codes carry (FP4)
  int64_t weights = 0, nonzero_weights = 0;
  int64_t rounded_weights = 0;                              // non-zero weights whose value changes
  int64_t underflows = 0;                                   // non-zero weights that become zero
  double worst_relative_error = 0, rms_relative_error = 0;  // over non-zero weights; only NaN-free scales count
  int64_t groups = 0;
  int64_t groups_outside_window = 0;  // with a value that e4m3's smallest binade or its subnormals cannot hold exactly
  int64_t nan_scales = 0, infinite_scales = 0, zero_scales = 0, negative_scales = 0;
  int64_t first_zero_row = -1, first_zero_column = -1;
  ScanResult bad_values;  // NaN codes and illegal scales, with positions
};

ConversionCost conversion_cost(const SourceMatrix& matrix);

}  // namespace monomoe
