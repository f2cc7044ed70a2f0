// Values that are refused, with their positions, and the neighbours that are legal.
#include "weights/scan.hpp"

#include <cmath>

#include "numerics/e4m3.h"
#include "numerics/e8m0.h"
#include "unit/weights/checkpoint_builder.hpp"

namespace monomoe {
namespace {

using test_support::Bytes;
using test_support::bytes_of;

using Where = ScanFinding::Where;

// A matrix of ones with room for its buffers.
struct HeldMatrix {
  Bytes codes, scales;
  SourceMatrix matrix;
};

HeldMatrix held(WeightFormat format, ScaleType type, int64_t rows, int64_t cols, Bytes scales) {
  HeldMatrix h;
  const int64_t bytes = format == WeightFormat::kFp8 ? rows * cols : format == WeightFormat::kBf16 ? 2 * rows * cols : rows * cols / 2;
  h.codes = Bytes(static_cast<size_t>(bytes), 0x22);
  h.scales = std::move(scales);
  h.matrix = {format, type, rows, cols, h.codes.data(), h.scales.data(), 1.0f};
  return h;
}

TEST(Scan, SoundMatricesHaveNoFindings) {
  EXPECT_EQ(scan_matrix(held(WeightFormat::kFp8, ScaleType::kF32, 130, 130, bytes_of(std::vector<float>{1, 2, 0, -0.0f})).matrix).count, 0);
  EXPECT_EQ(scan_matrix(held(WeightFormat::kNvfp4, ScaleType::kE4m3, 2, 32, {0, 1, 0x7E, 0x38}).matrix).count, 0);
  EXPECT_EQ(scan_matrix(held(WeightFormat::kMxfp4, ScaleType::kE8m0, 2, 64, {0, 1, 127, 254}).matrix).count, 0);
  EXPECT_EQ(scan_matrix(held(WeightFormat::kBf16, ScaleType::kNone, 2, 64, {}).matrix).count, 0);
}

TEST(Scan, Fp8NanCodesOfBothSigns) {
  HeldMatrix h = held(WeightFormat::kFp8, ScaleType::kF32, 100, 130, bytes_of(std::vector<float>{1, 1}));
  h.codes[0] = 0x7E;  // 448 is legal
  h.codes[1] = 0xFE;
  h.codes[37 * 130 + 129] = 0x7F;
  h.codes[99 * 130 + 0] = 0xFF;
  const ScanResult result = scan_matrix(h.matrix);
  ASSERT_EQ(result.count, 2);
  EXPECT_EQ(result.findings[0].where, Where::kCode);
  EXPECT_EQ(result.findings[0].row, 37);
  EXPECT_EQ(result.findings[0].column, 129);
  EXPECT_EQ(result.findings[0].bits, 0x7Fu);
  EXPECT_EQ(result.findings[1].row, 99);
  EXPECT_EQ(result.findings[1].column, 0);
  EXPECT_EQ(result.findings[1].what, "the NaN code 0xff");
}

TEST(Scan, Fp8ScalesNanInfiniteNegativeButZeroIsLegal) {
  const HeldMatrix f32 = held(WeightFormat::kFp8, ScaleType::kF32, 256, 384, bytes_of(std::vector<float>{0, NAN, 1, INFINITY, -0.5f, -INFINITY}));
  const ScanResult result = scan_matrix(f32.matrix);
  ASSERT_EQ(result.count, 4);
  EXPECT_EQ(result.findings[0].what, "a NaN scale");
  EXPECT_EQ(result.findings[0].column, 1);
  EXPECT_EQ(result.findings[1].what, "an infinite scale");
  EXPECT_EQ(result.findings[1].row, 1);
  EXPECT_EQ(result.findings[1].column, 0);
  EXPECT_EQ(result.findings[2].what, "a negative scale -0.5");
  EXPECT_EQ(result.findings[3].where, Where::kScale);
  const HeldMatrix bf16 = held(WeightFormat::kFp8, ScaleType::kBf16, 128, 512, bytes_of(std::vector<uint16_t>{0x0000, 0x7F80, 0x7FC0, 0xBF80}));
  EXPECT_EQ(scan_matrix(bf16.matrix).count, 3);
  const HeldMatrix e8m0 = held(WeightFormat::kFp8, ScaleType::kE8m0, 128, 512, {0, 254, 255, 127});
  ASSERT_EQ(scan_matrix(e8m0.matrix).count, 1);
  EXPECT_EQ(scan_matrix(e8m0.matrix).findings[0].column, 2);
}

TEST(Scan, Nvfp4BlockScalesNanAndNegativeEvenWithZeroNibbles) {
  HeldMatrix h = held(WeightFormat::kNvfp4, ScaleType::kE4m3, 3, 64, Bytes(12, 0x38));
  h.codes.assign(h.codes.size(), 0);
  h.scales[4 + 2] = 0x7F;
  h.scales[8 + 3] = 0xFF;
  h.scales[0] = 0x80;  // -0 is a zero
  h.scales[2] = 0x81;
  h.scales[1] = 0xB8;
  const ScanResult result = scan_matrix(h.matrix);
  ASSERT_EQ(result.count, 4);
  EXPECT_EQ(result.findings[0].what, "the negative scale -1 (0xb8)");
  EXPECT_EQ(result.findings[0].kind, ScanFinding::Kind::kNegative);
  EXPECT_EQ(result.findings[1].column, 2);
  EXPECT_EQ(result.findings[2].kind, ScanFinding::Kind::kNaN);
  EXPECT_EQ(result.findings[2].row, 1);
  EXPECT_EQ(result.findings[2].column, 2);
  EXPECT_EQ(result.findings[2].what, "the NaN scale 0x7f");
  EXPECT_EQ(result.findings[3].row, 2);
  EXPECT_EQ(result.findings[3].column, 3);
}

TEST(Scan, Mxfp4Scale255) {
  HeldMatrix h = held(WeightFormat::kMxfp4, ScaleType::kE8m0, 4, 64, {0, 1, 103, 127, 254, 255, 0, 0});
  const ScanResult result = scan_matrix(h.matrix);
  ASSERT_EQ(result.count, 1);
  EXPECT_EQ(result.findings[0].row, 2);
  EXPECT_EQ(result.findings[0].column, 1);
}

TEST(Scan, GlobalScaleZeroNanInfiniteNegative) {
  HeldMatrix h = held(WeightFormat::kNvfp4, ScaleType::kE4m3, 1, 16, {0x38});
  for (const float wrong : {0.0f, -0.0f, NAN, INFINITY, -INFINITY, -2.0f}) {
    h.matrix.global_scale = wrong;
    ASSERT_EQ(scan_matrix(h.matrix).count, 1) << wrong;
    EXPECT_EQ(scan_matrix(h.matrix).findings[0].where, Where::kGlobalScale);
  }
  for (const float fine : {1e-40f, 1.0f, 3e38f}) {
    h.matrix.global_scale = fine;
    EXPECT_EQ(scan_matrix(h.matrix).count, 0) << fine;
  }
}

TEST(Scan, FindingsAreCappedTheCountIsNot) {
  HeldMatrix h = held(WeightFormat::kFp8, ScaleType::kF32, 100, 128, bytes_of(std::vector<float>{1}));
  h.codes.assign(h.codes.size(), 0x7F);
  const ScanResult result = scan_matrix(h.matrix);
  EXPECT_EQ(result.count, 12800);
  EXPECT_EQ(static_cast<int64_t>(result.findings.size()), kMaxFindings);
}

TEST(Scan, EveryPositionOfEveryChunkIsSeen) {
  for (const size_t at : {0u, 1u, 4095u, 4096u, 4097u, 8191u, 8200u}) {
    HeldMatrix h = held(WeightFormat::kFp8, ScaleType::kF32, 1, 8201, bytes_of(std::vector<float>(65, 1)));
    h.codes[at] = 0xFF;
    const ScanResult result = scan_matrix(h.matrix);
    ASSERT_EQ(result.count, 1);
    EXPECT_EQ(result.findings[0].column, static_cast<int64_t>(at));
  }
}

TEST(Scan, TheRemedySaysWhatTheValueWouldDo) {
  HeldMatrix h = held(WeightFormat::kNvfp4, ScaleType::kE4m3, 1, 16, {0x38});
  const auto remedy = [&h](float global) {
    h.matrix.global_scale = global;
    return std::string(scan_remedy(scan_matrix(h.matrix).findings.at(0).kind));
  };
  EXPECT_NE(remedy(NAN).find("NaN"), std::string::npos);
  EXPECT_NE(remedy(INFINITY).find("infinities"), std::string::npos);
  for (const float finite : {0.0f, -1.0f}) EXPECT_EQ(remedy(finite).find("NaN"), std::string::npos) << finite;
}

TEST(Scan, FloatsOfBf16AndF32) {
  const Bytes bf16 = bytes_of(std::vector<uint16_t>{0x3F80, 0xFF80, 0x7FC0, 0x8000});
  EXPECT_EQ(scan_values(bf16.data(), true, 2, 2).count, 2);
  const Bytes f32 = bytes_of(std::vector<float>{1, NAN, -3e38f, -INFINITY});
  const ScanResult result = scan_values(f32.data(), false, 2, 2);
  ASSERT_EQ(result.count, 2);
  EXPECT_EQ(result.findings[1].row, 1);
  EXPECT_EQ(result.findings[1].column, 1);
}

TEST(Scan, ScaleCodesMeanWhatTheFormatsSay) {
  EXPECT_EQ(e4m3_decode(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(e4m3_decode(0x07), std::ldexp(7.0f, -9));
  EXPECT_EQ(e4m3_decode(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(e8m0_decode(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e8m0_decode(254), std::ldexp(1.0f, 127));
}

}  // namespace
}  // namespace monomoe
