// One pass over the source per half of 128 rows: 64 or 128 source bytes of a row become its words of the half.
#include "weights/pack_expert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "numerics/tensor_core.h"
#include "numerics/weight_codes.h"
#include "plan/problem_text.hpp"

namespace monomoe {

namespace {

bool is_fp4(WeightFormat format) { return format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4; }

template <class T>
T load(const uint8_t* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

// A row of a half: where it comes from, or nothing (padding).
struct SourceRow {
  const SourceMatrix* matrix = nullptr;
  int64_t channel = 0;
};
using HalfRows = std::array<SourceRow, kHalfRows>;

HalfRows gate_up_rows(const SourceExpert& expert, int64_t half) {
  HalfRows rows;
  for (int64_t r = 0; r < kHalfRows; ++r) {
    const GateUpRow where = gate_up_row(half, r);
    if (where.channel < expert.gate.rows) rows[r] = {where.is_up ? &expert.up : &expert.gate, where.channel};
  }
  return rows;
}

HalfRows down_rows(const SourceExpert& expert, int64_t half) {
  HalfRows rows;
  for (int64_t r = 0; r < kHalfRows; ++r) rows[r] = {&expert.down, half * kHalfRows + r};
  return rows;
}

// pack_fp4_word without its loop, for one word or a vector of them: magnitudes stay where they are, four signs at a time spread
// from bits 4j+3 to 8j+3.
template <class Word>
constexpr Word spread_signs(Word signs) {
  signs = (signs | signs << 8) & 0x00880088u;
  return (signs | signs << 4) & 0x08080808u;
}
template <class Word>
constexpr Word pack_word(Word codes) {
  return (codes & 0x77777777u) | spread_signs<Word>(codes & 0x8888u) << 4 | spread_signs<Word>(codes >> 16 & 0x8888u);
}
static_assert([] {
  for (int bit = 0; bit < 32; ++bit) {
    if (pack_word(uint32_t{1} << bit) != pack_fp4_word(uint32_t{1} << bit)) return false;  // both are unions over the bits
  }
  return pack_word(0x89ABCDEFu) == pack_fp4_word(0x89ABCDEFu);
}());

// One row's part of a K block: in place where it is whole, else copied and followed by zeros. It also asks for the row's next part:
// a half walks down 128 rows at once, too many for the hardware's own prefetcher to follow.
template <int64_t kBytes>
const uint8_t* row_part(const uint8_t* src, int64_t bytes, uint8_t* buffer) {
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(src + kBytes + line);
  if (bytes == kBytes) return src;
  std::memset(buffer, 0, kBytes);
  std::memcpy(buffer, src, bytes);
  return buffer;
}

using Words = uint32_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(16)));

// The scales of two rows, alternating, one for each 16 columns. kGroup: columns of one stored scale.
template <int64_t kGroup>
Bytes interleave_scales(const uint8_t* lower, const uint8_t* upper) {
  Bytes a{}, b{};
  std::memcpy(&a, lower, kBlockK / kGroup);
  std::memcpy(&b, upper, kBlockK / kGroup);
  if constexpr (kGroup == 16) {
    // A scale of -0 (0x80) is a zero; as 0x00 no kernel has to know of it.
    a &= reinterpret_cast<Bytes>(a != 0x80);
    b &= reinterpret_cast<Bytes>(b != 0x80);
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  } else {
    return __builtin_shufflevector(a, b, 0, 16, 0, 16, 1, 17, 1, 17, 2, 18, 2, 18, 3, 19, 3, 19);
  }
}

// Rows r and r + 8 of a half: 128 columns, or fewer at the end of K. Their words and scales alternate (fp4_word_offset), so together
// they make whole 16-byte pieces.
template <int64_t kGroup>
void pack_fp4_rows(const SourceRow& lower, const SourceRow& upper, int64_t k_begin, int64_t row, uint8_t* half) {
  const int64_t cols = lower.matrix->cols;
  const int64_t columns = min_of(kBlockK, cols - k_begin);
  const int64_t first_a = lower.channel * cols + k_begin, first_b = upper.channel * cols + k_begin;
  uint8_t buffers[4][64];
  const uint8_t* codes_a = row_part<64>(lower.matrix->codes + first_a / 2, columns / 2, buffers[0]);
  const uint8_t* codes_b = row_part<64>(upper.matrix->codes + first_b / 2, columns / 2, buffers[1]);
  constexpr int64_t kScales = kBlockK / kGroup;
  const uint8_t* scales_a = row_part<kScales>(lower.matrix->scales + first_a / kGroup, columns / kGroup, buffers[2]);
  const uint8_t* scales_b = row_part<kScales>(upper.matrix->scales + first_b / kGroup, columns / kGroup, buffers[3]);

  uint8_t* dst = half + fp4_half_word_offset(row, 0, 0);
  for (int t = 0; t < 4; ++t) {
    const Words a = pack_word(load<Words>(codes_a + 16 * t)), b = pack_word(load<Words>(codes_b + 16 * t));
    const Words first = __builtin_shufflevector(a, b, 0, 4, 1, 5), second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    std::memcpy(dst + fp4_word_offset(0, t, 0), &first, 16);
    std::memcpy(dst + fp4_word_offset(0, t, 2), &second, 16);
  }
  const Bytes scales = interleave_scales<kGroup>(scales_a, scales_b);
  std::memcpy(half + fp4_half_scale_offset(row, 0), &scales, 16);
}
static_assert(fp4_word_offset(8, 0, 0) == 4 && fp4_word_offset(0, 0, 1) == 8 && fp4_word_offset(8, 0, 1) == 12);
static_assert(fp4_scale_offset(8, 0) == 1 && fp4_scale_offset(0, 1) == 2 && fp4_scale_offset(8, 7) == 15);
static_assert(fp4_word_offset(21, 3, 2) == fp4_word_offset(21, 0, 0) + fp4_word_offset(0, 3, 2));

void pack_fp8_row(const SourceMatrix& m, int64_t channel, int64_t k_begin, int64_t row, uint8_t* half) {
  const int64_t columns = min_of(kBlockK, m.cols - k_begin);
  uint8_t buffer[kBlockK];
  const uint8_t* codes = row_part<kBlockK>(m.codes + channel * m.cols + k_begin, columns, buffer);
  // permuted_k keeps runs of four: physical chunk c = (i, h) of 16 bytes is the logical words 32t + 4c.
  for (int chunk = 0; chunk < 8; ++chunk) {
    uint8_t* dst = half + fp8_half_offset(row, 16 * chunk);
    for (int t = 0; t < 4; ++t) std::memcpy(dst + 4 * t, codes + 32 * t + 4 * chunk, 4);
  }
  static_assert(permuted_k(32 * 3 + 4 * 5) == 16 * 5 + 4 * 3);
}

void pack_half(const HalfRows& rows, int64_t k_block, const Problem& problem, uint8_t* half) {
  const int64_t k_begin = k_block * kBlockK;
  bool padded = false;
  for (const SourceRow& row : rows) padded = padded || row.matrix == nullptr || row.matrix->cols < k_begin + kBlockK;
  if (padded) std::memset(half, 0, half_bytes(problem.weights));
  for (int64_t r = 0; r < kHalfRows; ++r) {
    if (rows[r].matrix == nullptr) continue;  // of r and r + 8 both are padding or neither
    if (problem.weights == WeightFormat::kFp8) {
      pack_fp8_row(*rows[r].matrix, rows[r].channel, k_begin, r, half);
    } else if (r % 16 < 8) {
      const auto pack_rows = problem.weights == WeightFormat::kNvfp4 ? pack_fp4_rows<16> : pack_fp4_rows<32>;
      pack_rows(rows[r], rows[r + 8], k_begin, r, half);
    }
  }
}

float block_scale(const SourceMatrix& m, int64_t index) {
  if (m.scale_type == ScaleType::kF32) return load<float>(m.scales + index * 4);
  if (m.scale_type == ScaleType::kBf16) return bf16_decode(load<uint16_t>(m.scales + index * 2));
  return e8m0_decode(m.scales[index]);
}

void pack_block_scales(const SourceMatrix& m, uint8_t* dst) {
  const int64_t count = ceil_div(m.rows, kBlockK) * ceil_div(m.cols, kBlockK);
  for (int64_t i = 0; i < count; ++i) {
    const float scale = block_scale(m, i);
    std::memcpy(dst + i * 4, &scale, 4);
  }
}

struct Conversion {
  float multiplier = 1.0f;
  int shift = 0;
};
Conversion conversion_of(const SourceMatrix& m) {
  if (!is_fp4(m.format)) return {};
  const int shift = m.format == WeightFormat::kNvfp4 ? nvfp4_shift(max_abs_product(m)) : mxfp4_shift(max_abs_product(m));
  const double global = m.format == WeightFormat::kNvfp4 ? m.global_scale : 1.0;
  // Both factors and their product are exact in double, so this rounds once, and only where fp32 is subnormal.
  return {static_cast<float>(global * __builtin_ldexp(1.0, -shift)), shift};
}

std::string_view scale_type_text(ScaleType type) {
  switch (type) {
    case ScaleType::kNone: return "none";
    case ScaleType::kF32: return "F32";
    case ScaleType::kBf16: return "BF16";
    case ScaleType::kE8m0: return "E8M0";
    case ScaleType::kE4m3: return "E4M3";
  }
  return "unknown";
}

bool scale_type_fits(WeightFormat format, ScaleType type) {
  switch (format) {
    case WeightFormat::kFp8: return type == ScaleType::kF32 || type == ScaleType::kBf16 || type == ScaleType::kE8m0;
    case WeightFormat::kNvfp4: return type == ScaleType::kE4m3;
    case WeightFormat::kMxfp4: return type == ScaleType::kE8m0;
    case WeightFormat::kBf16: return type == ScaleType::kNone;
  }
  return false;
}

Result<void> check_matrix(std::string_view name, const SourceMatrix& m, const Problem& p, int64_t rows, int64_t cols) {
  if (m.format != p.weights) {
    return bad_input(fmt::format("{} weights are {}; the layer is {}: all matrices of a layer have one format", name,
                                 weight_format_text(m.format), weight_format_text(p.weights)));
  }
  if (m.rows != rows || m.cols != cols) {
    return bad_input(fmt::format("{} weights are [{}, {}]; wanted [{}, {}] for hidden {} and intermediate {}", name, m.rows, m.cols, rows,
                                 cols, p.hidden, p.intermediate));
  }
  if (m.format == WeightFormat::kFp8 && m.scale_block != kBlockK) {
    return bad_input(fmt::format("{} weights have a scale for each block of {} x {}; wanted 128 x 128: `monomoe pack --to fp8` brings them there",
                                 name, m.scale_block, m.scale_block));
  }
  if (m.codes == nullptr) return bad_input(fmt::format("{} weights have no codes (null pointer)", name));
  if (m.scales == nullptr) return bad_input(fmt::format("{} weights have no scales (null pointer)", name));
  if (!scale_type_fits(m.format, m.scale_type)) {
    constexpr std::string_view kWanted[] = {"F32, BF16 or E8M0", "E4M3", "E8M0", "none"};
    return bad_input(fmt::format("{} scales are {}; {} weights want {}", name, scale_type_text(m.scale_type),
                                 weight_format_text(m.format), kWanted[static_cast<int>(m.format)]));
  }
  return {};
}

// Largest magnitude code among sixteen nibbles: decided bit by bit, only those that are still largest remain candidates.
constexpr uint8_t largest_magnitude(uint64_t nibbles) {
  const uint64_t fours = nibbles & 0x4444444444444444u;
  const uint64_t after_four = fours != 0 ? fours >> 1 | fours >> 2 : 0x3333333333333333u;
  const uint64_t twos = nibbles & 0x2222222222222222u & after_four;
  const uint64_t after_two = twos != 0 ? twos >> 1 : 0x1111111111111111u & after_four;
  const uint64_t ones = nibbles & after_two;
  return static_cast<uint8_t>((fours != 0) * 4 + (twos != 0) * 2 + (ones != 0));
}
static_assert(largest_magnitude(0x80) == 0 && largest_magnitude(0x9) == 1 && largest_magnitude(0x4300) == 4);
static_assert(largest_magnitude(uint64_t{0x6C} << 56 | 0x51) == 6 && largest_magnitude(0x3F80) == 7 && largest_magnitude(0x123) == 3);

}  // namespace

double max_abs_product(const SourceMatrix& m) {
  const int64_t group_bytes = m.format == WeightFormat::kNvfp4 ? 8 : 16;
  const int64_t groups = m.rows * m.cols / 2 / group_bytes;
  uint8_t largest[256] = {};  // by scale code
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* codes = m.codes + g * group_bytes;
    uint8_t magnitude = largest_magnitude(load<uint64_t>(codes));
    if (group_bytes == 16) magnitude = std::max(magnitude, largest_magnitude(load<uint64_t>(codes + 8)));
    uint8_t& seen = largest[m.scales[g]];
    seen = std::max(seen, magnitude);
  }
  double result = 0;
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    const double scale = m.format == WeightFormat::kNvfp4 ? e4m3_decode(byte & 0x7F) : e8m0_decode(byte);
    const double product = scale * e2m1_decode(largest[code]);
    if (product > result) result = product;  // false for NaN
  }
  return result;
}

Result<void> check_expert(const SourceExpert& expert, const Problem& problem) {
  Problem shape = problem;
  shape.experts = shape.topk = shape.ranks = 1;
  shape.capacity = 0;
  if (auto checked = check(shape); !checked) return checked;
  if (auto checked = check_matrix("gate", expert.gate, problem, problem.intermediate, problem.hidden); !checked) return checked;
  if (auto checked = check_matrix("up", expert.up, problem, problem.intermediate, problem.hidden); !checked) return checked;
  return check_matrix("down", expert.down, problem, problem.hidden, problem.intermediate);
}

Result<void> pack_expert(const SourceExpert& expert, const Problem& problem, uint8_t* dst) {
  if (auto checked = check_expert(expert, problem); !checked) return checked;
  const ExpertLayout layout = expert_layout(problem);

  const Conversion gate = conversion_of(expert.gate), up = conversion_of(expert.up), down = conversion_of(expert.down);
  const PackedExpertHeader header{gate.multiplier, up.multiplier, down.multiplier, gate.shift, up.shift, down.shift,
                                  static_cast<int32_t>(problem.weights), 0};
  std::memset(dst, 0, kPackedHeaderBytes);
  std::memcpy(dst, &header, sizeof(header));

  for (int64_t half = 0; half < layout.gate_up_halves; ++half) {
    const HalfRows rows = gate_up_rows(expert, half);
    for (int64_t k = 0; k < layout.gate_up_k_blocks; ++k) pack_half(rows, k, problem, dst + layout.gate_up_half(half, k));
  }
  for (int64_t half = 0; half < layout.down_halves; ++half) {
    const HalfRows rows = down_rows(expert, half);
    for (int64_t k = 0; k < layout.down_k_blocks; ++k) pack_half(rows, k, problem, dst + layout.down_half(half, k));
  }
  std::memset(dst + layout.gate_scales_begin, 0, layout.bytes - layout.gate_scales_begin);
  if (problem.weights == WeightFormat::kFp8) {
    pack_block_scales(expert.gate, dst + layout.gate_scales_begin);
    pack_block_scales(expert.up, dst + layout.up_scales_begin);
    pack_block_scales(expert.down, dst + layout.down_scales_begin);
  }
  return {};
}

}  // namespace monomoe
