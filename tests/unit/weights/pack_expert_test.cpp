// Packing and unpacking are inverse, padding is exact zeros, and the header carries what the kernels need.
#include "weights/pack_expert.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "numerics/weight_codes.h"
#include "reference/decoded_matrix.hpp"
#include "reference/random_layer.hpp"

namespace monomoe {
namespace {

struct Shape {
  int64_t hidden, intermediate;
};
constexpr Shape kShapes[] = {{128, 32}, {128, 128}, {256, 96}, {384, 192}, {640, 352}, {512, 256}};

Problem problem_of(const Shape& shape, WeightFormat format) {
  Problem p;
  p.hidden = shape.hidden;
  p.intermediate = shape.intermediate;
  p.experts = p.topk = p.capacity = 1;
  p.weights = format;
  return p;
}

// Like random_matrix, but every byte value appears (NaN codes too: packing moves bytes, it does not judge them).
RandomExpert random_expert(const Problem& p, uint64_t seed) {
  RandomExpert e{random_matrix(p.weights, p.intermediate, p.hidden, seed, 0), random_matrix(p.weights, p.intermediate, p.hidden, seed, 1),
                 random_matrix(p.weights, p.hidden, p.intermediate, seed, 2)};
  for (RandomMatrix* m : {&e.gate, &e.up, &e.down}) {
    for (size_t i = 0; i < m->codes.size(); ++i) m->codes[i] = static_cast<uint8_t>(random_bits(seed, 99, i) >> 13);
    if (p.weights != WeightFormat::kFp8) {
      for (size_t i = 0; i < m->scales.size(); ++i) m->scales[i] = static_cast<uint8_t>(100 + i % 26);
    }
  }
  return e;
}

std::vector<uint8_t> pack(const RandomExpert& e, const Problem& p, uint8_t before) {
  std::vector<uint8_t> packed(expert_layout(p).bytes, before);
  const auto result = pack_expert(e.source(), p, packed.data());
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return packed;
}

float scale_value(const SourceMatrix& m, int64_t index) {
  if (m.scale_type == ScaleType::kE8m0) return std::ldexp(1.0f, m.scales[index] - 127);
  if (m.scale_type == ScaleType::kF32) {
    float value;
    std::memcpy(&value, m.scales + index * 4, 4);
    return value;
  }
  uint16_t code;
  std::memcpy(&code, m.scales + index * 2, 2);
  const uint32_t bits = static_cast<uint32_t>(code) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void expect_same(const RandomMatrix& want, const UnpackedMatrix& got) {
  EXPECT_EQ(got.matrix.rows, want.matrix.rows);
  EXPECT_EQ(got.matrix.cols, want.matrix.cols);
  EXPECT_EQ(got.codes, want.codes);
  EXPECT_EQ(got.matrix.global_scale, want.matrix.global_scale);
  if (want.matrix.format != WeightFormat::kFp8) {
    EXPECT_EQ(got.scales, want.scales);
    return;
  }
  const int64_t blocks = ceil_div(want.matrix.rows, 128) * ceil_div(want.matrix.cols, 128);
  ASSERT_EQ(static_cast<int64_t>(got.scales.size()), 4 * blocks);
  for (int64_t i = 0; i < blocks; ++i) EXPECT_EQ(scale_value(got.matrix, i), scale_value(want.matrix, i)) << i;
}

class PackExpert : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(PackExpert, UnpacksToWhatWentIn) {
  for (const Shape& shape : kShapes) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(::testing::Message() << shape.hidden << "/" << shape.intermediate << " seed " << seed);
      const Problem p = problem_of(shape, GetParam());
      const RandomExpert e = random_expert(p, seed);
      const std::vector<uint8_t> packed = pack(e, p, 0);
      const UnpackedExpert back = unpack_expert(packed.data(), p);
      expect_same(e.gate, back.gate);
      expect_same(e.up, back.up);
      expect_same(e.down, back.down);
    }
  }
}

TEST_P(PackExpert, WritesEveryByteWhateverWasThere) {
  for (const Shape& shape : kShapes) {
    const Problem p = problem_of(shape, GetParam());
    const RandomExpert e = random_expert(p, 4);
    EXPECT_EQ(pack(e, p, 0x00), pack(e, p, 0xFF));
  }
}

// The same expert with its intermediate padded by hand to 128: the packed tiles must not differ.
TEST_P(PackExpert, PaddingIsExactZeros) {
  const Problem p = problem_of({256, 96}, GetParam());
  const RandomExpert e = random_expert(p, 5);
  const std::vector<uint8_t> packed = pack(e, p, 0xEE);
  const ExpertLayout l = expert_layout(p);
  Problem whole = p;
  whole.intermediate = 128;
  ASSERT_EQ(expert_layout(whole).bytes, l.bytes);
  const UnpackedExpert padded = unpack_expert(packed.data(), whole);
  const int64_t scale_bytes = GetParam() == WeightFormat::kNvfp4 ? 16 : 32;
  for (const UnpackedMatrix* m : {&padded.gate, &padded.up, &padded.down}) {
    const bool is_down = m == &padded.down;
    for (int64_t row = 0; row < m->matrix.rows; ++row) {
      for (int64_t col = 0; col < m->matrix.cols; ++col) {
        if ((is_down ? col : row) < 96) continue;
        const int64_t index = row * m->matrix.cols + col;
        if (GetParam() == WeightFormat::kFp8) {
          ASSERT_EQ(m->codes[index], 0);
        } else {
          ASSERT_EQ(m->codes[index / 2] >> (index % 2 * 4) & 15, 0);
          ASSERT_EQ(m->scales[index / scale_bytes], 0);
        }
      }
    }
  }
}

TEST_P(PackExpert, HeaderAgreesWithTheReferenceDecoder) {
  const Problem p = problem_of({256, 160}, GetParam());
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const RandomExpert e{random_matrix(p.weights, p.intermediate, p.hidden, seed, 0),
                         random_matrix(p.weights, p.intermediate, p.hidden, seed, 1),
                         random_matrix(p.weights, p.hidden, p.intermediate, seed, 2)};
    const std::vector<uint8_t> packed = pack(e, p, 0);
    PackedExpertHeader header;
    std::memcpy(&header, packed.data(), sizeof(header));
    const DecodedMatrix gate = decode_matrix(e.gate.matrix), up = decode_matrix(e.up.matrix), down = decode_matrix(e.down.matrix);
    EXPECT_EQ(header.gate_multiplier, gate.multiplier);
    EXPECT_EQ(header.up_multiplier, up.multiplier);
    EXPECT_EQ(header.down_multiplier, down.multiplier);
    EXPECT_EQ(header.gate_shift, gate.shift);
    EXPECT_EQ(header.up_shift, up.shift);
    EXPECT_EQ(header.down_shift, down.shift);
    EXPECT_EQ(header.format, static_cast<int32_t>(GetParam()));
    if (GetParam() == WeightFormat::kFp8) {
      EXPECT_EQ(header.gate_multiplier, 1.0f);
      EXPECT_EQ(header.gate_shift, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PackExpert, ::testing::Values(WeightFormat::kFp8, WeightFormat::kNvfp4, WeightFormat::kMxfp4));

// Where single elements land, spelled out from the layout's description.
TEST(PackExpert, PutsElementsWhereTheLayoutSays) {
  const Problem p = problem_of({256, 128}, WeightFormat::kNvfp4);
  RandomExpert e = random_expert(p, 6);
  for (RandomMatrix* m : {&e.gate, &e.up, &e.down}) std::fill(m->codes.begin(), m->codes.end(), 0);
  // up, channel 77, k = 128 + 45: half 1, row 16 * ((77 - 64) / 8) + 8 + 5 = 29; t = 1, i = 1, code 5 of the word.
  e.up.codes[(77 * 256 + 173) / 2] = 0xB0;  // odd column: high nibble; 0xB = -1.5
  const std::vector<uint8_t> packed = pack(e, p, 0);
  const ExpertLayout l = expert_layout(p);
  uint32_t word;
  // row 29: warp 1, g = 5, upper; lane 32 + 4 * 5 + 1 = 53; load 0, word 3.
  std::memcpy(&word, &packed[l.gate_up_half(1, 1) + 53 * 16 + 12], 4);
  EXPECT_EQ(word, 3u << 20 | 1u << 11);
  int64_t others = 0;
  for (int64_t byte = l.gate_up_begin; byte < l.down_begin; ++byte) {
    const int64_t within = (byte - l.gate_up_begin) % kFp4HalfBytes;
    others += within < kFp4CodeBytes && packed[byte] != 0;
  }
  EXPECT_EQ(others, 2);
}

TEST(PackExpert, ShiftFillsTheE4m3Window) {
  // One non-zero group: 6 * 448 = 2688 needs 2^-3; 0.5 * 2^-9 alone can grow by 2^18: 2^-10 * 2^18 = 256.
  for (const auto& [nibble, scale, shift] : {std::tuple{0x7, 0x7E, -3}, {0xF, 0x7E, -3}, {0x1, 0x01, 18}, {0x0, 0x7E, 0}}) {
    std::vector<uint8_t> codes(32 * 128 / 2, 0), scales(32 * 128 / 16, 0x38);
    codes[100] = static_cast<uint8_t>(nibble);
    scales[100 / 8] = static_cast<uint8_t>(scale);
    const SourceMatrix m{WeightFormat::kNvfp4, ScaleType::kE4m3, 32, 128, codes.data(), scales.data(), 1.0f};
    EXPECT_EQ(nvfp4_shift(max_abs_product(m)), shift) << nibble << " " << scale;
  }
}

TEST(PackExpert, NanScalesDoNotDecideTheShift) {
  std::vector<uint8_t> codes(32 * 128 / 2, 0x22), scales(32 * 128 / 16, 0x38);
  scales[3] = 0x7F;
  scales[4] = 0xFF;
  const SourceMatrix m{WeightFormat::kNvfp4, ScaleType::kE4m3, 32, 128, codes.data(), scales.data(), 1.0f};
  EXPECT_EQ(max_abs_product(m), 1.0);
  std::vector<uint8_t> powers(32 * 128 / 32, 0);
  powers[5] = 255;
  powers[6] = 254;
  SourceMatrix mx{WeightFormat::kMxfp4, ScaleType::kE8m0, 32, 128, codes.data(), powers.data(), 1.0f};
  EXPECT_EQ(max_abs_product(mx), 0x1p127);
  powers[6] = 0;
  EXPECT_EQ(max_abs_product(mx), 0x1p-127);
}

// A scale of -0 is packed as the zero it is: the same bytes as 0.
TEST(PackExpert, ABlockScaleOfMinusZeroIsPackedAsZero) {
  const Problem problem{.hidden = 128, .intermediate = 128, .experts = 1, .topk = 1, .weights = WeightFormat::kNvfp4};
  std::vector<uint8_t> codes(128 * 64, 0x9A), packed[2];
  for (int i = 0; i < 2; ++i) {
    std::vector<uint8_t> scales(128 * 8, 0x38);
    scales[17] = i == 0 ? 0x80 : 0x00;
    const SourceMatrix matrix{WeightFormat::kNvfp4, ScaleType::kE4m3, 128, 128, codes.data(), scales.data(), 1.0f};
    packed[i].resize(static_cast<size_t>(expert_layout(problem).bytes));
    ASSERT_TRUE(pack_expert({matrix, matrix, matrix}, problem, packed[i].data()).ok());
  }
  EXPECT_EQ(packed[0], packed[1]);
}

TEST(PackExpert, ErrorsNameMatrixFoundAndWanted) {
  const Problem p = problem_of({256, 128}, WeightFormat::kNvfp4);
  const RandomExpert e = random_expert(p, 7);
  std::vector<uint8_t> packed(expert_layout(p).bytes, 0xAB);
  const auto error_after = [&](auto change, const Problem& problem) {
    SourceExpert source = e.source();
    change(source);
    const auto result = pack_expert(source, problem, packed.data());
    return result.ok() ? std::string() : result.error().message;
  };
  EXPECT_NE(error_after([](SourceExpert& s) { s.up.rows = 96; }, p).find("up weights are [96, 256]; wanted [128, 256]"), std::string::npos);
  EXPECT_NE(error_after([](SourceExpert& s) { std::swap(s.down.rows, s.down.cols); }, p).find("down weights are [128, 256]; wanted [256, 128]"),
            std::string::npos);
  EXPECT_NE(error_after([](SourceExpert& s) { s.gate.format = WeightFormat::kMxfp4; }, p).find("gate weights are mxfp4; the layer is nvfp4"),
            std::string::npos);
  EXPECT_NE(error_after([](SourceExpert& s) { s.gate.scale_type = ScaleType::kF32; }, p).find("gate scales are F32; nvfp4 weights want E4M3"),
            std::string::npos);
  EXPECT_NE(error_after([](SourceExpert& s) { s.down.codes = nullptr; }, p).find("down weights have no codes"), std::string::npos);
  EXPECT_NE(error_after([](SourceExpert& s) { s.down.scales = nullptr; }, p).find("down weights have no scales"), std::string::npos);
  Problem odd = p;
  odd.hidden = 200;
  EXPECT_NE(error_after([](SourceExpert&) {}, odd).find("hidden is 200"), std::string::npos);
  for (uint8_t byte : packed) ASSERT_EQ(byte, 0xAB) << "a refused expert must not be written";
}

}  // namespace
}  // namespace monomoe
