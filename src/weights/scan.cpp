// Whole chunks are tested with a loop that vectorises; only a chunk with a hit is looked at value by value.
#include "weights/scan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "numerics/bf16.h"
#include "numerics/bits.h"
#include "numerics/e4m3.h"

namespace monomoe {
namespace {

constexpr int64_t kChunk = 4096;

void report(ScanResult& result, ScanFinding finding) {
  ++result.count;
  if (static_cast<int64_t>(result.findings.size()) < kMaxFindings) result.findings.push_back(std::move(finding));
}

using FindingKind = ScanFinding::Kind;

struct Description {
  FindingKind kind;
  std::string what;
};

// `is_bad(bits)` says whether a value is refused and must be branch-free; `describe(bits)` says why.
template <class Word, class IsBad, class Describe>
void scan_words(ScanResult& result, ScanFinding::Where where, const uint8_t* data, int64_t rows, int64_t columns, IsBad is_bad,
                Describe describe) {
  const int64_t total = rows * columns;
  for (int64_t begin = 0; begin < total; begin += kChunk) {
    const int64_t count = std::min(kChunk, total - begin);
    const uint8_t* chunk = data + begin * static_cast<int64_t>(sizeof(Word));
    Word any = 0;
    for (int64_t i = 0; i < count; ++i) {
      Word word;
      std::memcpy(&word, chunk + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
      any |= static_cast<Word>(is_bad(word) ? 1 : 0);
    }
    if (any == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      Word word;
      std::memcpy(&word, chunk + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
      if (!is_bad(word)) continue;
      const Description found = describe(word);
      report(result, {where, found.kind, (begin + i) / columns, (begin + i) % columns, word, found.what});
    }
  }
}

Description describe_float(std::string_view noun, float value) {
  if (std::isnan(value)) return {FindingKind::kNaN, fmt::format("a NaN {}", noun)};
  if (std::isinf(value)) return {FindingKind::kInfinite, fmt::format("an infinite {}", noun)};
  return {FindingKind::kNegative, fmt::format("a negative {} {}", noun, value)};
}

Description describe_e4m3_scale(uint8_t code) {
  if (e4m3_is_nan(code)) return {FindingKind::kNaN, fmt::format("the NaN scale 0x{:02x}", code)};
  return {FindingKind::kNegative, fmt::format("the negative scale {} (0x{:02x})", e4m3_decode(code), code)};
}

void scan_codes(ScanResult& result, const SourceMatrix& m) {
  if (m.format == WeightFormat::kFp8) {
    scan_words<uint8_t>(
        result, ScanFinding::Where::kCode, m.codes, m.rows, m.cols, [](uint8_t code) { return (code & 0x7F) == 0x7F; },
        [](uint8_t code) { return Description{FindingKind::kNaN, fmt::format("the NaN code 0x{:02x}", code)}; });
  } else if (m.format == WeightFormat::kBf16) {
    result = scan_values(m.codes, true, m.rows, m.cols);
  }
}

void scan_scales(ScanResult& result, const SourceMatrix& m) {
  constexpr auto kWhere = ScanFinding::Where::kScale;
  if (m.format == WeightFormat::kNvfp4) {
    // 0x80 is -0: a zero, as in the other formats.
    scan_words<uint8_t>(
        result, kWhere, m.scales, m.rows, m.cols / 16, [](uint8_t code) { return code >= 0x7F && code != 0x80; }, describe_e4m3_scale);
    return;
  }
  const bool fp8 = m.format == WeightFormat::kFp8;
  const int64_t block = m.scale_block;
  const int64_t rows = fp8 ? (m.rows + block - 1) / block : m.rows, columns = fp8 ? (m.cols + block - 1) / block : m.cols / 32;
  if (m.scale_type == ScaleType::kE8m0) {
    scan_words<uint8_t>(
        result, kWhere, m.scales, rows, columns, [](uint8_t code) { return code == 0xFF; },
        [](uint8_t) { return Description{FindingKind::kNaN, "the NaN scale 255"}; });
  } else if (m.scale_type == ScaleType::kF32) {
    // Above the bits of the largest finite value: infinity, NaN and everything negative; -0 is a zero.
    scan_words<uint32_t>(
        result, kWhere, m.scales, rows, columns, [](uint32_t bits) { return bits >= 0x7F800000u && bits != 0x80000000u; },
        [](uint32_t bits) { return describe_float("scale", bits_float(bits)); });
  } else if (m.scale_type == ScaleType::kBf16) {
    scan_words<uint16_t>(
        result, kWhere, m.scales, rows, columns, [](uint16_t bits) { return bits >= 0x7F80u && bits != 0x8000u; },
        [](uint16_t bits) { return describe_float("scale", bf16_decode(bits)); });
  }
}

// Scales of zero are rare, so a group's codes are read only behind one.
int64_t zeroed_groups(const SourceMatrix& m) {
  if (m.format != WeightFormat::kNvfp4) return 0;  // e8m0 has no zero
  int64_t zeroed = 0;
  const uint8_t* end = m.scales + m.rows * m.cols / 16;
  for (const uint8_t* scale = m.scales; scale < end; ++scale) {
    if ((*scale & 0x7F) != 0) continue;
    const uint8_t* codes = m.codes + (scale - m.scales) * 8;
    zeroed += std::any_of(codes, codes + 8, [](uint8_t pair) { return (pair & 0x77) != 0; }) ? 1 : 0;
  }
  return zeroed;
}

}  // namespace

const char* scan_remedy(ScanFinding::Kind kind) {
  switch (kind) {
    case FindingKind::kNaN: return "it would turn outputs into NaN: export the tensor again";
    case FindingKind::kInfinite: return "it would turn outputs into NaN or infinities: export the tensor again";
    case FindingKind::kNegative: return "no scale is negative: export the tensor again";
    case FindingKind::kZero: return "it would turn the whole matrix into zeros: export the tensor again";
  }
  return "export the tensor again";
}

ScanResult scan_values(const uint8_t* data, bool is_bf16, int64_t rows, int64_t columns) {
  ScanResult result;
  if (is_bf16) {
    scan_words<uint16_t>(
        result, ScanFinding::Where::kCode, data, rows, columns, [](uint16_t bits) { return (bits & 0x7F80u) == 0x7F80u; },
        [](uint16_t bits) { return describe_float("value", bf16_decode(bits)); });
  } else {
    scan_words<uint32_t>(
        result, ScanFinding::Where::kCode, data, rows, columns, [](uint32_t bits) { return (bits & 0x7F800000u) == 0x7F800000u; },
        [](uint32_t bits) { return describe_float("value", bits_float(bits)); });
  }
  return result;
}

ScanResult scan_matrix(const SourceMatrix& matrix) {
  ScanResult result;
  result.zeroed = zeroed_groups(matrix);
  scan_codes(result, matrix);
  if (matrix.format != WeightFormat::kBf16) scan_scales(result, matrix);
  if (matrix.format == WeightFormat::kNvfp4) {
    const float global = matrix.global_scale;
    if (global == 0.0f) {
      report(result, {ScanFinding::Where::kGlobalScale, FindingKind::kZero, 0, 0, float_bits(global), "a weight_scale_2 of zero"});
    } else if (!is_finite(global) || global < 0.0f) {
      const Description found = describe_float("weight_scale_2", global);
      report(result, {ScanFinding::Where::kGlobalScale, found.kind, 0, 0, float_bits(global), found.what});
    }
  }
  return result;
}

}  // namespace monomoe
