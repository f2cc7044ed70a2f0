// Stored matrices from one format into another: codes and scales are kept where that is exact, else quantised, and every weight whose
// value changes is counted.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/source_matrix.h"

namespace monomoe {

// What a conversion changed. A weight counts as changed if its value differs at all; errors are relative to the value before.
struct ConversionChange {
  int64_t weights = 0, changed = 0;
  int64_t underflows = 0;                                       // of the changed: became zero
  double worst_relative_error = 0, squared_relative_error = 0;  // the latter summed over the weights
  int64_t first_row = -1, first_column = -1;                    // of the first changed weight, row by row
  double first_before = 0, first_after = 0;

  void add(const ConversionChange& more);  // keeps its own first place, if it has one
};

struct ConvertedMatrix {
  SourceMatrix matrix;  // points into the source where nothing had to be written, else into the two vectors
  std::vector<uint8_t> codes, scales;
  ConversionChange change;

  ConvertedMatrix() = default;
  ConvertedMatrix(ConvertedMatrix&&) = default;
  ConvertedMatrix& operator=(ConvertedMatrix&&) = default;
};
struct ConvertedExpert {
  ConvertedMatrix gate, up, down;
};

// To FP8, NVFP4 or MXFP4; the values must have been scanned (scan.hpp), the columns must fill whole groups of the format.
//   same format    codes and scales as they are (FP8 with other blocks than 128 x 128 is another format)
//   to MXFP4       per 32 columns: the codes as they are where the group's scale is a power of two, else the one exponent that represents
//                  all 32 exactly, else the better of two exponents
//   to NVFP4       from MXFP4: codes as they are, the largest exponent in the global scale; else global = largest / (6 * 448),
//                  scale = largest of 16 / 6 / global; gate and up share their global scale
//   to FP8         per 128 x 128: a power of two times the source's own global or block scale where that is exact, else the better of that
//                  and largest / 448
// FP8 scales come out as F32.
ConvertedExpert convert_expert(const SourceExpert& expert, WeightFormat format);

}  // namespace monomoe
