// 512-bit vectors (AVX-512 F, BW, DQ, VL): the names the kernel bodies use. Everything is local to the including file.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define MONOMOE_VECTOR [[maybe_unused, gnu::always_inline]] inline

namespace monomoe::cpu {
namespace {

constexpr int kVectorBits = 512;
constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef int8_t Bytes __attribute__((vector_size(64)));

MONOMOE_VECTOR Floats load_floats(const float* p) { return (Floats)_mm512_loadu_ps(p); }
MONOMOE_VECTOR void store_floats(float* p, Floats v) { _mm512_storeu_ps(p, (__m512)v); }
MONOMOE_VECTOR Floats broadcast(float x) { return (Floats)_mm512_set1_ps(x); }
MONOMOE_VECTOR Floats smaller(Floats a, Floats b) { return (Floats)_mm512_min_ps((__m512)a, (__m512)b); }
MONOMOE_VECTOR Floats larger(Floats a, Floats b) { return (Floats)_mm512_max_ps((__m512)a, (__m512)b); }
MONOMOE_VECTOR Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
MONOMOE_VECTOR Ints truncate(Floats v) { return (Ints)_mm512_cvttps_epi32((__m512)v); }
MONOMOE_VECTOR Floats to_floats(Ints v) { return (Floats)_mm512_cvtepi32_ps((__m512i)v); }
MONOMOE_VECTOR Ints larger(Ints a, Ints b) { return (Ints)_mm512_max_epi32((__m512i)a, (__m512i)b); }
MONOMOE_VECTOR Ints all_ints(int32_t x) { return (Ints)_mm512_set1_epi32(x); }
MONOMOE_VECTOR Ints widen_unsigned(const uint8_t* p) {
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
MONOMOE_VECTOR Ints widen_signed(const uint8_t* p) {
  return (Ints)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
MONOMOE_VECTOR Bytes load_bytes(const uint8_t* p) { return (Bytes)_mm512_loadu_si512(p); }
MONOMOE_VECTOR void store_bytes(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, (__m512i)v); }
MONOMOE_VECTOR Bytes broadcast_word(uint32_t x) { return (Bytes)_mm512_set1_epi32(static_cast<int32_t>(x)); }
MONOMOE_VECTOR Bytes larger_unsigned(Bytes a, Bytes b) { return (Bytes)_mm512_max_epu8((__m512i)a, (__m512i)b); }

}  // namespace
}  // namespace monomoe::cpu
