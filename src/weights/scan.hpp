// Values that no weight may have: NaN codes, NaN, infinite or negative scales. Found by position before anything is computed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/source_matrix.h"

namespace monomoe {

struct ScanFinding {
  enum class Where : uint8_t { kCode, kScale, kGlobalScale };
  enum class Kind : uint8_t { kNaN, kInfinite, kNegative, kZero };
  Where where = Where::kCode;
  Kind kind = Kind::kNaN;
  int64_t row = 0, column = 0;  // of the code, or of the scale in its grid
  uint32_t bits = 0;            // as stored
  std::string what;             // "NaN code 0x7f", "negative scale -0.5"
};

struct ScanResult {
  int64_t zeroed = 0;  // scales of zero over codes that are not all zero: legal, but those weights vanish (FP4 groups)
  int64_t count = 0;                  // all findings
  std::vector<ScanFinding> findings;  // the first kMaxFindings, codes first, then scales
};
constexpr int64_t kMaxFindings = 8;  // kept per matrix

// What such a value would do, and the remedy: the end of a sentence.
const char* scan_remedy(ScanFinding::Kind kind);

// A scale of zero, -0 too, is legal for blocks and groups; a zero weight_scale_2 is not.
ScanResult scan_matrix(const SourceMatrix& matrix);

// Non-finite values of a BF16 or F32 array ([rows, columns]), e.g. the router's weight.
ScanResult scan_values(const uint8_t* data, bool is_bf16, int64_t rows, int64_t columns);

}  // namespace monomoe
