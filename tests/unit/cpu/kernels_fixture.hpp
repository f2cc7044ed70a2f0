// A packed expert filled with chosen codes, token rows, and the contract's sums computed one element at a time with numerics/.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/kernels.hpp"
#include "numerics/bits.h"
#include "numerics/e4m3.h"
#include "numerics/fp32.h"
#include "numerics/tensor_core.h"
#include "numerics/weight_codes.h"
#include "plan/problem.h"
#include "plan/weight_packing.h"

namespace monomoe::cpu::testing {

// How e4m3 codes are drawn.
enum class Mix { kAll, kMid, kSmall, kWide, kMostlyZero, kCancelling };
inline constexpr Mix kAllMixes[] = {Mix::kAll, Mix::kMid, Mix::kSmall, Mix::kWide, Mix::kMostlyZero, Mix::kCancelling};

class Codes {
 public:
  explicit Codes(uint32_t seed) : random_(seed) {}

  uint8_t draw(Mix mix) {
    const auto sign = static_cast<uint8_t>((random_() & 1) << 7);
    switch (mix) {
      case Mix::kAll: return static_cast<uint8_t>(sign | random_() % 0x7F);
      case Mix::kMid: return static_cast<uint8_t>(sign | (0x30 + random_() % 0x18));
      case Mix::kSmall: return static_cast<uint8_t>(sign | random_() % 12);
      case Mix::kWide: return random_() % 4 == 0 ? static_cast<uint8_t>(sign | (0x60 + random_() % 0x1F)) : static_cast<uint8_t>(sign | random_() % 0x40);
      case Mix::kMostlyZero: return random_() % 40 == 0 ? static_cast<uint8_t>(sign | random_() % 0x7F) : sign;
      case Mix::kCancelling: return static_cast<uint8_t>(sign | 0x40 | (random_() % 16 == 0 ? random_() % 4 : 0));
    }
    return 0;
  }
  float scale() { return std::ldexp(1.0f + static_cast<float>(random_() % 1000) / 1000.0f, static_cast<int>(random_() % 12) - 8); }
  std::mt19937& random() { return random_; }

 private:
  std::mt19937 random_;
};

class PackedExpert {
 public:
  PackedExpert(const Problem& problem, Mix mix, uint32_t seed) : problem_(problem), layout_(expert_layout(problem)), bytes_(layout_.bytes) {
    Codes codes(seed);
    auto& random = codes.random();
    for (int64_t n = layout_.gate_up_begin; n < layout_.gate_scales_begin; ++n) {
      bytes_[n] = problem.weights == WeightFormat::kFp8 ? codes.draw(mix) : static_cast<uint8_t>(random());
    }
    header_ = {1.0f, 1.0f, 1.0f, 0, 0, 0, static_cast<int32_t>(problem.weights), 0};
    if (problem.weights == WeightFormat::kFp8) {
      for (int64_t n = layout_.gate_scales_begin; n + 4 <= layout_.bytes; n += 4) store_float(n, codes.scale() * (random() % 8 == 0 ? -1.0f : 1.0f));
    } else {
      header_.gate_multiplier = 0.37f, header_.up_multiplier = -1.9f, header_.down_multiplier = 0.0123f;
      header_.gate_shift = 1, header_.up_shift = -2, header_.down_shift = 3;
      draw_fp4_scales(mix, codes);
    }
    set_header(header_);
  }

  const Problem& problem() const { return problem_; }
  const ExpertLayout& layout() const { return layout_; }
  const PackedExpertHeader& header() const { return header_; }
  void set_header(const PackedExpertHeader& header) {
    header_ = header;
    std::memcpy(bytes_.data(), &header_, sizeof header_);
  }
  uint8_t* bytes() { return bytes_.data(); }
  WeightTile tile(bool down, int64_t index) const { return {bytes_.data(), &layout_, down, index}; }

  // e4m3 code of one weight, from the layout's definition.
  uint8_t code(bool down, int64_t half, int64_t k_block, int64_t row, int physical) const {
    const uint8_t* base = bytes_.data() + (down ? layout_.down_half(half, k_block) : layout_.gate_up_half(half, k_block));
    if (problem_.weights == WeightFormat::kFp8) return base[fp8_half_offset(row, physical)];
    const int k = logical_k(physical), t = k / 32, i = k % 32 / 8, j = k % 8;
    uint32_t word;
    std::memcpy(&word, base + fp4_half_word_offset(row, t, i), 4);
    const auto nibble = static_cast<uint8_t>(unpack_fp4_word(word) >> (4 * j) & 15u);
    const uint8_t scale = base[fp4_half_scale_offset(row, k / 16)];
    const int shift = down ? header_.down_shift : gate_up_row(half, row).is_up ? header_.up_shift : header_.gate_shift;
    return problem_.weights == WeightFormat::kNvfp4 ? e4m3_from_nvfp4(nibble, scale, shift) : e4m3_from_mxfp4(nibble, scale, shift);
  }

  float promotion_scale(bool down, int64_t half, int64_t k_block, int64_t row, float token_scale) const {
    if (problem_.weights != WeightFormat::kFp8) return token_scale;
    if (down) return mul_rn(token_scale, load_float(layout_.down_scales_begin + (half * layout_.down_k_blocks + k_block) * 4));
    const GateUpRow place = gate_up_row(half, row);
    const int64_t block = place.channel / 128 * layout_.gate_up_k_blocks + k_block;
    return mul_rn(token_scale, load_float((place.is_up ? layout_.up_scales_begin : layout_.gate_scales_begin) + block * 4));
  }

  float multiplier(bool down, int64_t half, int64_t row) const {
    return down ? header_.down_multiplier : gate_up_row(half, row).is_up ? header_.up_multiplier : header_.gate_multiplier;
  }

  // The contract's sum for one token and one packed row.
  float sum(bool down, int64_t half, int64_t row, const uint8_t* token_codes, const float* token_scales) const {
    float total = 0.0f;
    for (int64_t k_block = 0; k_block < (down ? layout_.down_k_blocks : layout_.gate_up_k_blocks); ++k_block) {
      uint8_t weights[kBlockK];
      for (int physical = 0; physical < kBlockK; ++physical) weights[physical] = code(down, half, k_block, row, physical);
      const float acc = tensor_core_block(token_codes + k_block * kBlockK, weights);
      total = fma_rn(acc, promotion_scale(down, half, k_block, row, token_scales[k_block]), total);
    }
    return mul_rn(total, multiplier(down, half, row));
  }

 private:
  void draw_fp4_scales(Mix mix, Codes& codes) {
    const int64_t halves = (layout_.gate_scales_begin - layout_.gate_up_begin) / layout_.half_bytes;
    for (int64_t half = 0; half < halves; ++half) {
      uint8_t* scales = bytes_.data() + layout_.gate_up_begin + half * layout_.half_bytes + kFp4CodeBytes;
      for (int64_t n = 0; n < kFp4ScaleBytes; ++n) {
        scales[n] = problem_.weights == WeightFormat::kNvfp4 ? codes.draw(mix) : static_cast<uint8_t>(127 - 12 + codes.random()() % 20);
      }
    }
  }
  void store_float(int64_t offset, float value) { std::memcpy(bytes_.data() + offset, &value, 4); }
  float load_float(int64_t offset) const {
    float value;
    std::memcpy(&value, bytes_.data() + offset, 4);
    return value;
  }

  Problem problem_;
  ExpertLayout layout_;
  std::vector<uint8_t> bytes_;
  PackedExpertHeader header_{};
};

// Token rows of their own, in scattered memory as an executor gathers them.
class Tokens {
 public:
  Tokens(int64_t count, int64_t k_blocks, Mix mix, uint32_t seed) : k_blocks_(k_blocks), codes_(count), scales_(count) {
    Codes codes(seed);
    for (int64_t n = 0; n < count; ++n) {
      codes_[n].resize(k_blocks * kBlockK);
      scales_[n].resize(k_blocks);
      for (uint8_t& code : codes_[n]) code = codes.draw(mix);
      for (float& scale : scales_[n]) scale = codes.scale();
      code_rows_.push_back(codes_[n].data());
      scale_rows_.push_back(scales_[n].data());
    }
  }
  TokenRows rows() const { return {code_rows_.data(), scale_rows_.data(), static_cast<int64_t>(code_rows_.size())}; }
  TokenRows rows(int64_t first, int64_t count) const { return {code_rows_.data() + first, scale_rows_.data() + first, count}; }
  std::vector<uint8_t>& codes(int64_t n) { return codes_[n]; }
  std::vector<float>& scales(int64_t n) { return scales_[n]; }

 private:
  int64_t k_blocks_;
  std::vector<std::vector<uint8_t>> codes_;
  std::vector<std::vector<float>> scales_;
  std::vector<const uint8_t*> code_rows_;
  std::vector<const float*> scale_rows_;
};

// 64-byte aligned scratch that starts full of rubbish.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : words_((bytes + 127) / 64) {
    std::memset(words_.data(), 0xA5, words_.size() * sizeof(Line));
  }
  void* data() { return words_.data(); }

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> words_;
};

inline std::vector<float> tile_sums(const Kernels& kernels, const WeightTile& tile, const TokenRows& tokens) {
  std::vector<float> sums(tokens.count * 256, -7.25f);
  Scratch scratch(kernels.scratch_bytes);
  kernels.tile_sums(tile, tokens, sums.data(), scratch.data());
  return sums;
}

inline std::vector<int> available_widths() {
  std::vector<int> widths;
  for (int bits : {128, 256, 512}) {
    if (has_vectors(bits)) widths.push_back(bits);
  }
  return widths;
}

}  // namespace monomoe::cpu::testing
