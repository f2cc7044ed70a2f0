// 256-bit vectors (AVX2 and FMA): the names the kernel bodies use. Everything is local to the including file.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define MONOMOE_VECTOR [[maybe_unused, gnu::always_inline]] inline

namespace monomoe::cpu {
namespace {

constexpr int kVectorBits = 256;
constexpr int kLanes = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef int8_t Bytes __attribute__((vector_size(32)));

MONOMOE_VECTOR Floats load_floats(const float* p) { return (Floats)_mm256_loadu_ps(p); }
MONOMOE_VECTOR void store_floats(float* p, Floats v) { _mm256_storeu_ps(p, (__m256)v); }
MONOMOE_VECTOR Floats broadcast(float x) { return (Floats)_mm256_set1_ps(x); }
MONOMOE_VECTOR Floats smaller(Floats a, Floats b) { return (Floats)_mm256_min_ps((__m256)a, (__m256)b); }
MONOMOE_VECTOR Floats larger(Floats a, Floats b) { return (Floats)_mm256_max_ps((__m256)a, (__m256)b); }
MONOMOE_VECTOR Floats fused(Floats a, Floats b, Floats c) { return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
MONOMOE_VECTOR Ints truncate(Floats v) { return (Ints)_mm256_cvttps_epi32((__m256)v); }
MONOMOE_VECTOR Floats to_floats(Ints v) { return (Floats)_mm256_cvtepi32_ps((__m256i)v); }
MONOMOE_VECTOR Ints larger(Ints a, Ints b) { return (Ints)_mm256_max_epi32((__m256i)a, (__m256i)b); }
MONOMOE_VECTOR Ints all_ints(int32_t x) { return (Ints)_mm256_set1_epi32(x); }
MONOMOE_VECTOR Ints widen_unsigned(const uint8_t* p) {
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
MONOMOE_VECTOR Ints widen_signed(const uint8_t* p) {
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
MONOMOE_VECTOR Bytes load_bytes(const uint8_t* p) { return (Bytes)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
MONOMOE_VECTOR void store_bytes(uint8_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)v); }
MONOMOE_VECTOR Bytes broadcast_word(uint32_t x) { return (Bytes)_mm256_set1_epi32(static_cast<int32_t>(x)); }
MONOMOE_VECTOR Bytes larger_unsigned(Bytes a, Bytes b) { return (Bytes)_mm256_max_epu8((__m256i)a, (__m256i)b); }

}  // namespace
}  // namespace monomoe::cpu
