// 128-bit vectors (SSE2, which every x86-64 has): the names the kernel bodies use. Everything is local to the including file.
#pragma once

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#define MONOMOE_VECTOR [[maybe_unused, gnu::always_inline]] inline

namespace monomoe::cpu {
namespace {

constexpr int kVectorBits = 128;
constexpr int kLanes = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(16)));

MONOMOE_VECTOR Floats load_floats(const float* p) { return (Floats)_mm_loadu_ps(p); }
MONOMOE_VECTOR void store_floats(float* p, Floats v) { _mm_storeu_ps(p, (__m128)v); }
MONOMOE_VECTOR Floats broadcast(float x) { return (Floats)_mm_set1_ps(x); }
MONOMOE_VECTOR Floats smaller(Floats a, Floats b) { return (Floats)_mm_min_ps((__m128)a, (__m128)b); }
MONOMOE_VECTOR Floats larger(Floats a, Floats b) { return (Floats)_mm_max_ps((__m128)a, (__m128)b); }
// Without FMA instructions this is four library calls; they round once all the same.
MONOMOE_VECTOR Floats fused(Floats a, Floats b, Floats c) {
  return Floats{__builtin_fmaf(a[0], b[0], c[0]), __builtin_fmaf(a[1], b[1], c[1]), __builtin_fmaf(a[2], b[2], c[2]),
                __builtin_fmaf(a[3], b[3], c[3])};
}
MONOMOE_VECTOR Ints truncate(Floats v) { return (Ints)_mm_cvttps_epi32((__m128)v); }
MONOMOE_VECTOR Floats to_floats(Ints v) { return (Floats)_mm_cvtepi32_ps((__m128i)v); }
MONOMOE_VECTOR Ints larger(Ints a, Ints b) {
  const Ints a_wins = a > b;
  return (a & a_wins) | (b & ~a_wins);
}
MONOMOE_VECTOR Ints all_ints(int32_t x) { return (Ints)_mm_set1_epi32(x); }
MONOMOE_VECTOR __m128i four_bytes(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm_cvtsi32_si128(word);
}
MONOMOE_VECTOR Ints widen_unsigned(const uint8_t* p) {
  const __m128i zero = _mm_setzero_si128();
  return (Ints)_mm_unpacklo_epi16(_mm_unpacklo_epi8(four_bytes(p), zero), zero);
}
MONOMOE_VECTOR Ints widen_signed(const uint8_t* p) {
  const __m128i bytes = four_bytes(p);
  const __m128i pairs = _mm_unpacklo_epi8(bytes, bytes);
  return (Ints)_mm_unpacklo_epi16(pairs, pairs) >> 24;
}
MONOMOE_VECTOR Bytes load_bytes(const uint8_t* p) { return (Bytes)_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
MONOMOE_VECTOR void store_bytes(uint8_t* p, Bytes v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), (__m128i)v); }
MONOMOE_VECTOR Bytes broadcast_word(uint32_t x) { return (Bytes)_mm_set1_epi32(static_cast<int32_t>(x)); }
MONOMOE_VECTOR Bytes larger_unsigned(Bytes a, Bytes b) { return (Bytes)_mm_max_epu8((__m128i)a, (__m128i)b); }

}  // namespace
}  // namespace monomoe::cpu
