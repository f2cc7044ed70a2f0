// A weight matrix as a checkpoint or a caller holds it: codes and scales, not yet packed. Plain pointers, no ownership.
#pragma once

#include <cstdint>

namespace monomoe {

enum class WeightFormat : uint8_t { kFp8, kNvfp4, kMxfp4, kBf16 };
enum class ScaleType : uint8_t { kNone, kF32, kBf16, kE8m0, kE4m3 };

// [rows, cols] row-major; rows are output channels, cols the K of the product. Pointers may be unaligned (mapped files): read through memcpy.
//   kFp8    codes e4m3 [rows, cols];             scales [ceil(rows/scale_block), ceil(cols/scale_block)] as kF32, kBf16 or kE8m0
//   kNvfp4  codes [rows, cols/2], low nibble = even column; scales e4m3 [rows, cols/16] (kE4m3); global_scale multiplies all
//   kMxfp4  codes [rows, cols/2], low nibble = even column; scales e8m0 [rows, cols/32] (kE8m0)
//   kBf16   codes bf16 [rows, cols] (2 bytes each); no scales
struct SourceMatrix {
  WeightFormat format = WeightFormat::kBf16;
  ScaleType scale_type = ScaleType::kNone;
  int64_t rows = 0;
  int64_t cols = 0;
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  float global_scale = 1.0f;  // NVFP4's weight_scale_2; 1 for the others
  int64_t scale_block = 128;  // FP8: rows and columns of one scale; 32 is only converted, never run
};

// One expert: gate and up are [intermediate, hidden], down is [hidden, intermediate].
struct SourceExpert {
  SourceMatrix gate, up, down;
};

}  // namespace monomoe
