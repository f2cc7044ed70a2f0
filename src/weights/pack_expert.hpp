// Checkpoint form of an expert -> the packed form every backend reads (plan/weight_packing.h), and back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.hpp"
#include "plan/problem.h"
#include "plan/source_matrix.h"
#include "plan/weight_packing.h"

namespace monomoe {

// Largest |e2m1 * scale| of an FP4 matrix, exact, without the global scale; NaN scales are left out. It decides the shift.
double max_abs_product(const SourceMatrix& matrix);

// Shapes, formats and pointers of an expert against the problem (hidden, intermediate, weights; the rest is not read). The
// error names matrix, found and wanted. Values are not looked at: that is scan.hpp's work.
Result<void> check_expert(const SourceExpert& expert, const Problem& problem);

// Writes all expert_layout(problem).bytes of dst. Channels that pad intermediate to 128 become exact zeros.
Result<void> pack_expert(const SourceExpert& expert, const Problem& problem, uint8_t* dst);

// What an expert was packed from, byte for byte, except that FP8 block scales come back as fp32 and MXFP4 has no global scale.
struct UnpackedMatrix {
  std::vector<uint8_t> codes, scales;
  SourceMatrix matrix;  // points into the two vectors, hence no copies

  UnpackedMatrix() = default;
  UnpackedMatrix(UnpackedMatrix&&) = default;
  UnpackedMatrix& operator=(UnpackedMatrix&&) = default;
};
struct UnpackedExpert {
  UnpackedMatrix gate, up, down;
};
UnpackedExpert unpack_expert(const uint8_t* packed, const Problem& problem);

}  // namespace monomoe
