// Each target format's quantiser: row by row for FP4, blocks of 128 rows for FP8.
#pragma once

#include "weights/convert.hpp"
#include "weights/matrix_values.hpp"

namespace monomoe {

// MXFP4 in NVFP4's form: scale codes 2^-9..2^8 beside `global`, a power of two.
ConvertedMatrix cast_to_nvfp4(const SourceMatrix& matrix, float global);
ConvertedMatrix quantise_to_nvfp4(const SourceMatrix& matrix, float global);
ConvertedMatrix quantise_to_mxfp4(const SourceMatrix& matrix);
ConvertedMatrix quantise_to_fp8(const SourceMatrix& matrix);

}  // namespace monomoe
