// Counter-based random bytes (a 64-bit finaliser over key + position) shaped into legal codes.
#include "layer/synth_fill.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "numerics/bf16.h"

namespace monomoe::layer {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;

// A bijection of 64-bit words whose outputs look random for consecutive inputs.
inline uint64_t mixed(uint64_t x) {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

// [-1, 1) from 32 random bits.
inline float signed_unit(uint32_t bits) { return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f; }

// About normal with deviation 1: four uniform 16-bit numbers added.
inline float about_normal(uint64_t bits) {
  const auto part = [&](int i) { return static_cast<float>((bits >> (16 * i)) & 0xFFFFu); };
  const float sum = (part(0) + part(1)) + (part(2) + part(3));
  return (sum - 131070.0f) * (1.7320508f / 65536.0f);
}

void random_words(uint64_t key, uint64_t first, std::span<uint64_t> words) {
  for (size_t i = 0; i < words.size(); ++i) words[i] = mixed(key + (first + i) * kStep);
}

void shape_bytes(const FillSpec& spec, std::span<uint8_t> bytes) {
  switch (spec.fill) {
    case Fill::kE4m3Codes:
      for (uint8_t& code : bytes) code = static_cast<uint8_t>(code ^ ((code & 0x7F) == 0x7F ? 1 : 0));
      break;
    case Fill::kE8m0Scales:
      for (uint8_t& code : bytes) code = static_cast<uint8_t>(spec.low + (code & 3));
      break;
    case Fill::kE4m3Scales:
      for (uint8_t& code : bytes) code = static_cast<uint8_t>(spec.low + (code & 31));
      break;
    default:
      break;
  }
}

// Element i of a fill with elements wider than a byte, written to dst.
void shape_element(const FillSpec& spec, uint64_t key, uint64_t i, uint8_t* dst) {
  const uint64_t random = mixed(key + i * kStep);
  if (spec.fill == Fill::kI64Below) {
    // Inside a run the numbers step by one from a random start, so they differ as long as run <= bound.
    const uint64_t run = static_cast<uint64_t>(spec.run);
    const uint64_t bound = static_cast<uint64_t>(spec.bound);
    const uint64_t start = mixed(key + i / run * kStep);
    const int64_t value = static_cast<int64_t>((start % bound + i % run * std::max<uint64_t>(1, bound / run)) % bound);
    std::memcpy(dst, &value, sizeof(value));
    return;
  }
  const float unit = spec.fill == Fill::kBf16Normal ? about_normal(random) : signed_unit(static_cast<uint32_t>(random));
  const float value = spec.center + spec.spread * unit;
  const uint16_t rounded = bf16_encode(value);
  if (spec.fill == Fill::kF32Uniform)
    std::memcpy(dst, &value, sizeof(value));
  else
    std::memcpy(dst, &rounded, sizeof(rounded));
}

uint64_t element_bytes(Fill fill) {
  switch (fill) {
    case Fill::kF32Uniform:
      return 4;
    case Fill::kBf16Uniform:
    case Fill::kBf16Normal:
      return 2;
    case Fill::kI64Below:
      return 8;
    default:
      return 1;
  }
}

}  // namespace

uint64_t tensor_key(uint64_t seed, std::string_view name) {
  uint64_t key = mixed(seed + kStep);
  for (const char c : name) key = mixed(key ^ static_cast<uint8_t>(c)) + kStep;
  return key;
}

Result<void> fill_tensor(const FillSpec& spec, uint64_t key, uint64_t bytes, const Sink& sink) {
  const uint64_t width = element_bytes(spec.fill);
  std::vector<uint64_t> piece(static_cast<size_t>(std::min(bytes, kPieceBytes) / 8 + 1));
  auto* piece_bytes = reinterpret_cast<uint8_t*>(piece.data());
  for (uint64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const uint64_t count = std::min(kPieceBytes, bytes - begin);
    if (width == 1) {
      random_words(key, begin / 8, {piece.data(), static_cast<size_t>((count + 7) / 8)});
      shape_bytes(spec, {piece_bytes, static_cast<size_t>(count)});
    } else {
      for (uint64_t at = 0; at < count; at += width) shape_element(spec, key, (begin + at) / width, piece_bytes + at);
    }
    if (auto sent = sink({piece_bytes, static_cast<size_t>(count)}); !sent) return sent;
  }
  return {};
}

}  // namespace monomoe::layer
