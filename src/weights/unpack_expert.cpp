// The way back from the packed form, element by element through the layout's offsets: it shares no loop with the packer.
#include <cstring>

#include "numerics/tensor_core.h"
#include "weights/pack_expert.hpp"

namespace monomoe {

namespace {

// Where element (row, column) of a matrix stands: its half and the row inside it.
struct PackedPlace {
  const uint8_t* half;
  int64_t row;
};

enum class Part { kGate, kUp, kDown };

PackedPlace place_of(const uint8_t* packed, const ExpertLayout& layout, Part part, int64_t channel, int64_t k_block) {
  if (part == Part::kDown) return {packed + layout.down_half(channel / kHalfRows, k_block), channel % kHalfRows};
  constexpr int64_t kChannels = kHalfRows / 2;  // of gate and of up in one half
  const int64_t within = channel % kChannels;
  const int64_t row = within / kInterleave * 2 * kInterleave + (part == Part::kUp ? kInterleave : 0) + within % kInterleave;
  return {packed + layout.gate_up_half(channel / kChannels, k_block), row};
}

uint8_t fp8_code(const PackedPlace& place, int64_t k) {
  return place.half[fp8_half_offset(place.row, permuted_k(static_cast<int>(k)))];
}

uint8_t fp4_code(const PackedPlace& place, int64_t k) {
  uint32_t word;
  std::memcpy(&word, place.half + fp4_half_word_offset(place.row, k / 32, k / 8 % 4), 4);
  return unpack_fp4_word(word) >> (4 * (k % 8)) & 15u;
}

void unpack_fp8(const uint8_t* packed, const ExpertLayout& layout, Part part, int64_t scales_begin, UnpackedMatrix& out) {
  const SourceMatrix& m = out.matrix;
  out.codes.resize(m.rows * m.cols);
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t col = 0; col < m.cols; ++col) {
      out.codes[row * m.cols + col] = fp8_code(place_of(packed, layout, part, row, col / kBlockK), col % kBlockK);
    }
  }
  const uint8_t* scales = packed + scales_begin;
  out.scales.assign(scales, scales + ceil_div(m.rows, kBlockK) * ceil_div(m.cols, kBlockK) * 4);
  out.matrix.scale_type = ScaleType::kF32;
}

void unpack_fp4(const uint8_t* packed, const ExpertLayout& layout, Part part, UnpackedMatrix& out) {
  const SourceMatrix& m = out.matrix;
  const int64_t group_columns = m.format == WeightFormat::kNvfp4 ? 16 : 32;
  out.codes.assign(m.rows * m.cols / 2, 0);
  out.scales.resize(m.rows * m.cols / group_columns);
  for (int64_t row = 0; row < m.rows; ++row) {
    for (int64_t col = 0; col < m.cols; ++col) {
      const PackedPlace place = place_of(packed, layout, part, row, col / kBlockK);
      const int64_t index = row * m.cols + col;
      out.codes[index / 2] |= static_cast<uint8_t>(fp4_code(place, col % kBlockK) << (col % 2 * 4));
      out.scales[index / group_columns] = place.half[fp4_half_scale_offset(place.row, col % kBlockK / 16)];
    }
  }
  out.matrix.scale_type = m.format == WeightFormat::kNvfp4 ? ScaleType::kE4m3 : ScaleType::kE8m0;
}

UnpackedMatrix unpack_matrix(const uint8_t* packed, const Problem& problem, Part part) {
  const ExpertLayout layout = expert_layout(problem);
  PackedExpertHeader header;
  std::memcpy(&header, packed, sizeof(header));
  UnpackedMatrix out;
  out.matrix.format = problem.weights;
  out.matrix.rows = part == Part::kDown ? problem.hidden : problem.intermediate;
  out.matrix.cols = part == Part::kDown ? problem.intermediate : problem.hidden;
  const int64_t scales_begin = part == Part::kGate ? layout.gate_scales_begin
                               : part == Part::kUp ? layout.up_scales_begin
                                                   : layout.down_scales_begin;
  if (problem.weights == WeightFormat::kFp8) {
    unpack_fp8(packed, layout, part, scales_begin, out);
  } else {
    unpack_fp4(packed, layout, part, out);
  }
  const float multipliers[] = {header.gate_multiplier, header.up_multiplier, header.down_multiplier};
  const int32_t shifts[] = {header.gate_shift, header.up_shift, header.down_shift};
  const auto index = static_cast<size_t>(part);
  out.matrix.global_scale = static_cast<float>(multipliers[index] * __builtin_ldexp(1.0, shifts[index]));
  out.matrix.codes = out.codes.data();
  out.matrix.scales = out.scales.data();
  return out;
}

}  // namespace

UnpackedExpert unpack_expert(const uint8_t* packed, const Problem& problem) {
  return {unpack_matrix(packed, problem, Part::kGate), unpack_matrix(packed, problem, Part::kUp), unpack_matrix(packed, problem, Part::kDown)};
}

}  // namespace monomoe
