// Every code of every format, and encoding at every rounding edge.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "nearest_code.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/e8m0.h"

namespace monomoe {
namespace {

using test_support::e2m1_values;
using test_support::e4m3_values;
using test_support::nearest_e2m1;
using test_support::nearest_e4m3;

constexpr float kFormatsInfinity = std::numeric_limits<float>::infinity();

static_assert(e4m3_encode(17.0f) == e4m3_encode(16.0f), "the formats work in constant expressions");
static_assert(e4m3_decode(0x7E) == 448.0f && e2m1_decode(0xF) == -6.0f && bf16_encode(1.0f) == 0x3F80);

TEST(Bits, PowersOfTwoAreExactOverTheWholeRange) {
  for (int e = -149; e <= 127; ++e) EXPECT_EQ(power_of_two(e), std::ldexp(1.0, e)) << e;
  EXPECT_EQ(power_of_two(128), kFormatsInfinity);
  EXPECT_EQ(power_of_two(-150), 0.0f);
}

TEST(Bits, Classification) {
  EXPECT_TRUE(is_finite(std::numeric_limits<float>::max()));
  EXPECT_TRUE(is_finite(-0.0f));
  EXPECT_FALSE(is_finite(kFormatsInfinity));
  EXPECT_FALSE(is_finite(-kFormatsInfinity));
  EXPECT_FALSE(is_finite(fp32_nan()));
  EXPECT_TRUE(is_nan(-fp32_nan()));
  EXPECT_FALSE(is_nan(kFormatsInfinity));
  EXPECT_EQ(float_bits(fp32_nan()), 0x7FFFFFFFu);
}

TEST(E4m3, DecodesAllCodes) {
  for (int code = 0; code < 256; ++code) {
    const float got = e4m3_decode(static_cast<std::uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_EQ(float_bits(got), 0x7FFFFFFFu);
      continue;
    }
    EXPECT_EQ(std::fabs(got), e4m3_values()[code & 0x7F]) << code;
    EXPECT_EQ(std::signbit(got), code >= 128) << code;
  }
}

TEST(E4m3, EncodesItsOwnValues) {
  for (int code = 0; code < 256; ++code) {
    const int want = (code & 0x7F) == 0x7F ? 0x7F : code;
    EXPECT_EQ(e4m3_encode(e4m3_decode(static_cast<std::uint8_t>(code))), want);
  }
}

TEST(E4m3, RoundsAtEveryEdge) {
  for (int code = 0; code < 126; ++code) {
    const float edge = static_cast<float>((e4m3_values()[code] + e4m3_values()[code + 1]) / 2);
    const int even = code + code % 2;
    EXPECT_EQ(e4m3_encode(edge), even);
    EXPECT_EQ(e4m3_encode(std::nextafter(edge, 0.0f)), code);
    EXPECT_EQ(e4m3_encode(std::nextafter(edge, kFormatsInfinity)), code + 1);
    EXPECT_EQ(e4m3_encode(-edge), even | 0x80);
    EXPECT_EQ(e4m3_encode(-std::nextafter(edge, 0.0f)), code | 0x80);
    EXPECT_EQ(e4m3_encode(-std::nextafter(edge, kFormatsInfinity)), (code + 1) | 0x80);
  }
}

TEST(E4m3, KnownValues) {
  const float pairs[][2] = {{17, 16},   {19, 20},          {248, 256},           {272, 256}, {465, 448}, {464, 448},
                            {480, 448}, {0x1p-10f, 0},     {0x1.8p-9f, 0x1p-8f}, {1e30f, 448}, {0x1p-149f, 0},
                            {-17, -16}, {-1e30f, -448}, {kFormatsInfinity, 448}, {-kFormatsInfinity, -448}};
  for (const auto& [in, out] : pairs) EXPECT_EQ(e4m3_decode(e4m3_encode(in)), out) << in;
  EXPECT_EQ(e4m3_encode(0.0f), 0x00);
  EXPECT_EQ(e4m3_encode(-0.0f), 0x80);
  EXPECT_EQ(e4m3_encode(-0x1p-11f), 0x80) << "underflow keeps the sign";
  for (std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFFC00000u, 0xFFFFFFFFu, 0xFF800001u}) {
    EXPECT_EQ(e4m3_encode(bits_float(nan)), 0x7F);
  }
}

TEST(E4m3, AgreesWithTheSearchOverTheWholeRange) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 40009) {
    const float value = bits_float(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(e4m3_encode(value), nearest_e4m3(value)) << std::hexfloat << value;
  }
  // Most of fp32 saturates or vanishes, so the window itself gets a denser pass.
  for (std::uint32_t bits = float_bits(0x1p-12f); bits < float_bits(1024.0f); bits += 1009) {
    ASSERT_EQ(e4m3_encode(bits_float(bits)), nearest_e4m3(bits_float(bits))) << std::hexfloat << bits_float(bits);
  }
}

TEST(E2m1, DecodesAllCodes) {
  const float want[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(float_bits(e2m1_decode(static_cast<std::uint8_t>(code))), float_bits(want[code])) << code;
    EXPECT_EQ(e2m1_encode(want[code]), code);
    EXPECT_EQ(float_bits(e2m1_decode(static_cast<std::uint8_t>(code | 0xF0))), float_bits(want[code])) << "only the low nibble counts";
  }
}

TEST(E2m1, RoundsAtEveryEdgeAndSaturates) {
  for (int code = 0; code < 7; ++code) {
    const float edge = static_cast<float>((e2m1_values()[code] + e2m1_values()[code + 1]) / 2);
    EXPECT_EQ(e2m1_encode(edge), code + code % 2);
    EXPECT_EQ(e2m1_encode(std::nextafter(edge, 0.0f)), code);
    EXPECT_EQ(e2m1_encode(std::nextafter(edge, kFormatsInfinity)), code + 1);
    EXPECT_EQ(e2m1_encode(-edge), (code + code % 2) | 8);
  }
  for (float beyond : {6.5f, 7.0f, 8.0f, 1e30f, kFormatsInfinity}) {
    EXPECT_EQ(e2m1_encode(beyond), 7);
    EXPECT_EQ(e2m1_encode(-beyond), 15);
  }
  EXPECT_EQ(e2m1_encode(bits_float(0xFFC00000u)), 7) << "NaN has no code; the hardware gives +6";
}

TEST(E2m1, AgreesWithTheSearchOverTheWholeRange) {
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 10007) {
    const float value = bits_float(static_cast<std::uint32_t>(bits));
    if (is_nan(value)) continue;
    ASSERT_EQ(e2m1_encode(value), nearest_e2m1(value)) << std::hexfloat << value;
  }
}

TEST(E8m0, AllCodes) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_decode(static_cast<std::uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(e8m0_encode(value), code);
  }
  EXPECT_EQ(float_bits(e8m0_decode(255)), 0x7FFFFFFFu);
}

TEST(E8m0, WhatIsNoPowerOfTwoHasNoCode) {
  for (float value : {0.0f, -0.0f, -1.0f, 1.5f, 3.0f, 0x1p-128f, 0x1.8p-127f, kFormatsInfinity, -kFormatsInfinity, std::nextafter(1.0f, 2.0f)}) {
    EXPECT_EQ(e8m0_encode(value), kE8m0NaN) << std::hexfloat << value;
  }
  EXPECT_EQ(e8m0_encode(fp32_nan()), kE8m0NaN);
}

// The value of a bf16 code from its definition: 8 exponent bits, 7 mantissa bits.
double bf16_value(int code) {
  const int field = (code >> 7) & 0xFF;
  const double fraction = (code & 0x7F) / 128.0;
  const double magnitude = field == 0 ? std::ldexp(fraction, -126) : std::ldexp(1 + fraction, field - 127);
  return code >= 0x8000 ? -magnitude : magnitude;
}

TEST(Bf16, AllCodes) {
  for (int code = 0; code < 65536; ++code) {
    const float value = bf16_decode(static_cast<std::uint16_t>(code));
    const bool special = (code & 0x7F80) == 0x7F80;
    ASSERT_EQ(bf16_is_finite(static_cast<std::uint16_t>(code)), !special);
    if (!special) {
      ASSERT_EQ(value, bf16_value(code)) << code;
      ASSERT_EQ(std::signbit(value), code >= 0x8000);
    } else if ((code & 0x7F) == 0) {
      ASSERT_EQ(value, code >= 0x8000 ? -kFormatsInfinity : kFormatsInfinity);
    } else {
      ASSERT_TRUE(is_nan(value));
    }
    ASSERT_EQ(bf16_encode(value), is_nan(value) ? kBf16NaN : code);
  }
}

TEST(Bf16, RoundsAtEveryEdge) {
  for (int code = 0; code < 0x7F80; ++code) {
    const std::uint32_t edge = (static_cast<std::uint32_t>(code) << 16) | 0x8000u;
    for (std::uint32_t sign : {0u, 1u}) {
      ASSERT_EQ(bf16_encode(bits_float(edge | sign << 31)), (code + code % 2) | static_cast<int>(sign << 15));
      ASSERT_EQ(bf16_encode(bits_float((edge - 1) | sign << 31)), code | static_cast<int>(sign << 15));
      ASSERT_EQ(bf16_encode(bits_float((edge + 1) | sign << 31)), (code + 1) | static_cast<int>(sign << 15));
    }
  }
}

TEST(Bf16, EveryNaNIsTheOneNaN) {
  for (std::uint32_t nan : {0x7F800001u, 0x7FC00000u, 0xFFFFFFFFu, 0x7FFFFFFFu, 0xFF800001u}) {
    EXPECT_EQ(bf16_encode(bits_float(nan)), 0x7FFF);
  }
}

}  // namespace
}  // namespace monomoe
