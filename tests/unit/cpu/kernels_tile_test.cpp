// tile_sums of every width this machine has, bit for bit against numerics/ one element at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "unit/cpu/kernels_fixture.hpp"

namespace monomoe::cpu::testing {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4};

Problem problem(WeightFormat format, int64_t hidden, int64_t intermediate) {
  Problem p;
  p.hidden = hidden, p.intermediate = intermediate, p.experts = 1, p.topk = 1, p.weights = format;
  return p;
}

::testing::AssertionResult same_bits(float found, float wanted) {
  if (is_nan(wanted) ? float_bits(found) == kFp32NaNBits : float_bits(found) == float_bits(wanted)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "found " << found << " (" << std::hex << float_bits(found) << "), wanted " << wanted << " ("
                                       << float_bits(wanted) << ")";
}

// All widths against the scalar contract for one tile; rows_step thins out the slow scalar side.
void check_tile(const PackedExpert& expert, bool down, int64_t index, const Tokens& tokens, int64_t rows_step) {
  const WeightTile tile = expert.tile(down, index);
  const TokenRows rows = tokens.rows();
  std::vector<float> first;
  for (int bits : available_widths()) {
    const std::vector<float> sums = tile_sums(kernels(bits), tile, rows);
    if (first.empty()) first = sums;
    ASSERT_EQ(0, std::memcmp(first.data(), sums.data(), sums.size() * sizeof(float))) << bits << " bits differ from 128";
  }
  for (int64_t token = 0; token < rows.count; ++token) {
    for (int64_t row = token % rows_step; row < tile.rows(); row += rows_step) {
      const float wanted = expert.sum(down, 2 * index + row / 128, row % 128, rows.codes[token], rows.scales[token]);
      ASSERT_TRUE(same_bits(first[token * 256 + row], wanted)) << "token " << token << " row " << row << " down " << down;
    }
    for (int64_t row = tile.rows(); row < 256; ++row) ASSERT_EQ(first[token * 256 + row], -7.25f) << "written beyond the tile's rows";
  }
}

TEST(TileSums, EveryFormatAndDistributionOfCodes) {
  uint32_t seed = 1;
  for (WeightFormat format : kFormats) {
    for (Mix weights : kAllMixes) {
      const PackedExpert expert(problem(format, 256, 160), weights, seed++);
      for (Mix inputs : kAllMixes) {
        SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)) + " seed " + std::to_string(seed));
        const Tokens in(5, 2, inputs, seed++);
        check_tile(expert, false, 1, in, 1);
        check_tile(expert, true, 0, in, 1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TileSums, OddLastHalfStandsAlone) {
  for (WeightFormat format : kFormats) {
    const PackedExpert expert(problem(format, 384, 256), Mix::kAll, 7);
    ASSERT_EQ(expert.tile(true, 1).rows(), 128);
    check_tile(expert, true, 1, Tokens(3, 2, Mix::kAll, 8), 1);
    check_tile(expert, true, 0, Tokens(3, 2, Mix::kAll, 9), 1);
  }
}

TEST(TileSums, EveryCountOfTokens) {
  const PackedExpert expert(problem(WeightFormat::kNvfp4, 128, 128), Mix::kMid, 11);
  const Tokens all(kMaxTileTokens, 1, Mix::kAll, 12);
  check_tile(expert, false, 0, all, 31);
  for (int bits : available_widths()) {
    const std::vector<float> whole = tile_sums(kernels(bits), expert.tile(false, 0), all.rows());
    for (int64_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 63, 64, 65}) {
      const std::vector<float> part = tile_sums(kernels(bits), expert.tile(false, 0), all.rows(100, count));
      ASSERT_EQ(0, std::memcmp(part.data(), whole.data() + 100 * 256, part.size() * sizeof(float))) << bits << " bits, " << count << " tokens";
    }
  }
}

TEST(TileSums, NoTokensWritesNothing) {
  const PackedExpert expert(problem(WeightFormat::kFp8, 128, 128), Mix::kMid, 13);
  for (int bits : available_widths()) {
    Scratch scratch(kernels(bits).scratch_bytes);
    kernels(bits).tile_sums(expert.tile(false, 0), {}, nullptr, scratch.data());
  }
}

TEST(TileSums, BlockAndMatrixScalesReachTheirOwnRows) {
  PackedExpert expert(problem(WeightFormat::kFp8, 384, 256), Mix::kMid, 17);
  expert.set_header({2.0f, -3.0f, 0.1f, 0, 0, 0, static_cast<int32_t>(WeightFormat::kFp8), 0});
  const Tokens tokens(2, 3, Mix::kMid, 18);
  check_tile(expert, false, 0, tokens, 1);
  check_tile(expert, false, 1, tokens, 1);
}

// A NaN code, a NaN scale or an infinite scale marks its own token in all rows, and no other token.
TEST(TileSums, NonFiniteTokensStayAlone) {
  for (WeightFormat format : kFormats) {
    const PackedExpert expert(problem(format, 256, 128), Mix::kMid, 19);
    Tokens tokens(6, 2, Mix::kMid, 20);
    const std::vector<float> before = tile_sums(kernels(128), expert.tile(false, 0), tokens.rows());
    tokens.codes(1)[200] = 0x7F;
    tokens.codes(2)[5] = 0xFF;
    tokens.scales(4)[0] = std::numeric_limits<float>::quiet_NaN();
    for (int bits : available_widths()) {
      const std::vector<float> sums = tile_sums(kernels(bits), expert.tile(false, 0), tokens.rows());
      for (int64_t token = 0; token < 6; ++token) {
        const bool nan = token == 1 || token == 2 || token == 4;
        for (int64_t row = 0; row < 256; ++row) {
          const uint32_t wanted = nan ? kFp32NaNBits : float_bits(before[token * 256 + row]);
          ASSERT_EQ(float_bits(sums[token * 256 + row]), wanted) << bits << " bits, token " << token << ", row " << row;
        }
      }
    }
    tokens.scales(3)[1] = std::numeric_limits<float>::infinity();
    check_tile(expert, false, 0, tokens, 3);
  }
}

TEST(TileSums, SumsThatCancelOrVanishArePositiveZero) {
  PackedExpert expert(problem(WeightFormat::kFp8, 128, 128), Mix::kMid, 21);
  for (int64_t n = expert.layout().gate_up_begin; n < expert.layout().down_begin; ++n) expert.bytes()[n] = 0x38;
  Tokens tokens(3, 1, Mix::kMid, 22);
  for (int k = 0; k < 128; ++k) {
    tokens.codes(0)[k] = k % 2 == 0 ? 0x40 : 0xC0;
    tokens.codes(1)[k] = 0x80;
    tokens.codes(2)[k] = k == 77 ? 0x81 : 0x80;
  }
  for (int bits : available_widths()) {
    const std::vector<float> sums = tile_sums(kernels(bits), expert.tile(false, 0), tokens.rows());
    for (int64_t row = 0; row < 256; ++row) {
      ASSERT_EQ(float_bits(sums[row]), 0u);
      ASSERT_EQ(float_bits(sums[256 + row]), 0u);
      ASSERT_NE(sums[512 + row], 0.0f);
    }
  }
  check_tile(expert, false, 0, tokens, 1);
}

// Every nibble with every scale code, at shifts from where all vanishes to where all saturates.
TEST(TileSums, Fp4ConversionOfEveryScaleAndShift) {
  for (WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kMxfp4}) {
    PackedExpert expert(problem(format, 128, 128), Mix::kMid, 23);
    const int64_t gate_up = expert.layout().gate_up_begin;
    for (int shift : {-600, -200, -130, -40, -9, -4, -1, 0, 1, 2, 5, 17, 100, 127, 140, 300, 600}) {
      for (int64_t half = 0; half < 2; ++half) {
        uint8_t* scales = expert.bytes() + gate_up + half * expert.layout().half_bytes + kFp4CodeBytes;
        for (int64_t n = 0; n < kFp4ScaleBytes; ++n) {
          scales[n] = static_cast<uint8_t>(n + half);
          const bool nan = format == WeightFormat::kNvfp4 ? e4m3_is_nan(scales[n]) : scales[n] == 0xFF;
          if (nan) scales[n] = 0;
        }
      }
      PackedExpertHeader header = expert.header();
      header.gate_shift = shift, header.up_shift = -shift;
      expert.set_header(header);
      // One k at a time shows each weight alone: the product with 1 is the converted weight itself.
      Tokens tokens(128, 1, Mix::kMid, 24);
      for (int k = 0; k < 128; ++k) {
        std::fill(tokens.codes(k).begin(), tokens.codes(k).end(), uint8_t{0});
        tokens.codes(k)[k] = 0x38;
      }
      check_tile(expert, false, 0, tokens, 3);
      if (HasFatalFailure()) {
        ADD_FAILURE() << "shift " << shift;
        return;
      }
    }
  }
}

}  // namespace
}  // namespace monomoe::cpu::testing
