// Random tensor contents, made as fast as they can be written: every byte follows from a key and its position, so a tensor can be
// filled piece by piece and is the same in any order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/result.hpp"

namespace monomoe::layer {

enum class Fill : uint8_t {
  kFp4Codes,     // any byte
  kE4m3Codes,    // any code but NaN
  kE8m0Scales,   // four neighbouring powers of two from `low` on
  kE4m3Scales,   // 32 neighbouring positive codes from `low` on
  kF32Uniform,   // [center - spread, center + spread)
  kBf16Uniform,  // the same, rounded
  kBf16Normal,   // about normal: center, standard deviation spread
  kI64Below,     // whole numbers 0..bound-1, distinct inside each run of `run`
};

struct FillSpec {
  Fill fill = Fill::kFp4Codes;
  uint8_t low = 0;
  float center = 0, spread = 0;
  int64_t bound = 0, run = 1;
};

// Standard deviation of random codes at scale 1, so that a caller can choose scales for a wanted spread of the weights.
inline constexpr double kE4m3CodeDeviation = 107.24;  // uniform codes, NaN made 448
inline constexpr double kE2m1CodeDeviation = 2.926;   // uniform over the 16 codes
inline constexpr double kE4m3ScaleDeviation = 1.689;  // root mean square of the codes 0x28..0x47
inline constexpr double kE8m0ScaleDeviation = 4.610;  // root mean square of 1, 2, 4, 8
inline constexpr uint8_t kE4m3ScaleLow = 0x28;

uint64_t tensor_key(uint64_t seed, std::string_view name);

using Sink = std::function<Result<void>(std::span<const uint8_t>)>;
// Sends `bytes` bytes of the tensor to sink, in pieces.
Result<void> fill_tensor(const FillSpec& spec, uint64_t key, uint64_t bytes, const Sink& sink);

}  // namespace monomoe::layer
