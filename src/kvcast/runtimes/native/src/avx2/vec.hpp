// Shared by the parts of the AVX2 instruction set.
#pragma once
#include "kernels.hpp"
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

// Functions between these two use AVX2, FMA and F16C, whatever the rest is compiled for. No header may be
// included between them: its definitions would be compiled for AVX2 and could be taken for all files.
#if defined(__clang__)
#define AVX2_BEGIN _Pragma("clang attribute push(__attribute__((target(\"avx2,fma,f16c\"))), apply_to = function)")
#define AVX2_END _Pragma("clang attribute pop")
#else
#define AVX2_BEGIN              \
  _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx2,fma,f16c\")")
#define AVX2_END _Pragma("GCC pop_options")
#endif

#define INLINE inline __attribute__((always_inline))

namespace kvcast {

extern const Gemm avx2_gemm;
extern const Gemm avx2_vnni_gemm;
extern const Attention avx2_attention;

// Names that the other instruction sets have too.
namespace with_avx2 {

constexpr float LOG2_E = 1.44269504f;
constexpr int STRIP = 16;            // columns whose sums for MOST_ROWS rows fit into 16 registers
constexpr int PAIR = STRIP / 8;      // vectors of a strip
constexpr int VECTORS = BLOCK / 8;

AVX2_BEGIN

using Vector = __m256;
using Mask = __m256i;
using Some = int;          // lane mask of a partial vector, in this ISA's form
constexpr int FLOATS = 8;  // of a Vector
constexpr int SUMS = 1;    // that norms take in turn

INLINE Some some(int count) { return count; }

// The first `count` of 8 lanes, clamped to 0 .. 8.
INLINE Mask first(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE Mask between(int begin, int end) { return _mm256_andnot_si256(first(begin), first(end)); }
INLINE Vector keep(Mask there, Vector x) { return _mm256_and_ps(_mm256_castsi256_ps(there), x); }  // elsewhere 0
INLINE Vector select(Mask there, Vector x, Vector other) { return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(there)); }

// The first `count` of 8 values, then zeros. Nothing else is read.
INLINE __m256 load(const float* from, int count) {
  return count >= 8 ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first(count));
}

INLINE void store(float* to, __m256 x) { _mm256_storeu_ps(to, x); }
INLINE void store(float* to, int count, __m256 x) {
  if (count >= 8)
    _mm256_storeu_ps(to, x);
  else
    _mm256_maskstore_ps(to, first(count), x);
}

INLINE __m256 load(const float* from) { return _mm256_loadu_ps(from); }
INLINE __m256 load_between(const float* from, int begin, int end) { return _mm256_maskload_ps(from, between(begin, end)); }
INLINE __m256 load(const uint16_t* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
INLINE __m256 load(const uint16_t* from, int count) {
  if (count >= 8) return load(from);
  uint16_t halves[8] = {};
  if (count > 0) std::memcpy(halves, from, count * sizeof(uint16_t));
  return load(halves);
}

INLINE __m256 load(const int8_t* from) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}
INLINE __m256 load(const int8_t* from, int count) {
  if (count >= 8) return load(from);
  int8_t codes[8] = {};
  if (count > 0) std::memcpy(codes, from, count);
  return load(codes);
}

INLINE void store(uint16_t* to, int count, __m256 x) {
  uint16_t halves[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  std::memcpy(to, halves, std::min(8, count) * sizeof(uint16_t));
}

// Rounds to the nearest integers.
INLINE void store(int8_t* to, int count, __m256 x) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  int8_t codes[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm_packs_epi16(words, words));
  std::memcpy(to, codes, std::min(8, count));
}

INLINE __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), x); }

// Arithmetic under the names that shared code has for it.

INLINE Vector all(float x) { return _mm256_set1_ps(x); }
INLINE Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
INLINE Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
INLINE Vector difference(Vector a, Vector b, Vector c, Vector d) { return _mm256_fmsub_ps(a, b, _mm256_mul_ps(c, d)); }
INLINE Vector greater(Vector a, Vector b) { return _mm256_max_ps(a, b); }
INLINE Vector positive(Vector x) { return _mm256_max_ps(x, _mm256_setzero_ps()); }  // of NaN 0, as everywhere
INLINE Vector by_sign(Vector x, Vector negative, Vector other) { return _mm256_blendv_ps(other, negative, x); }
INLINE Vector if_less(Vector a, Vector b, Vector less, Vector other) {
  return _mm256_blendv_ps(other, less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

// x, and 0 where `of` is less than `bound`; NaN is not.
INLINE Vector unless_less(Vector of, Vector bound, Vector x) {
  return _mm256_and_ps(_mm256_cmp_ps(of, bound, _CMP_NLT_UQ), x);
}

// Horizontal reductions, each in a fixed order.
INLINE float total(__m256 x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINE int32_t total(__m256i x) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

INLINE int32_t greatest(__m256i x) {
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1)));
}

INLINE float greatest(__m256 x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

// The elementwise maximum; NaN if either is.
struct Peak {
  Vector most, unordered = _mm256_setzero_ps();

  INLINE void take(Vector x) {
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    most = _mm256_max_ps(most, x);
  }
  INLINE float value() const { return _mm256_movemask_ps(unordered) ? NAN : greatest(most); }
};

// 2^x to 2e-7 relative; far below 0 nearly 0, from 128 on infinite; NaN stays. Cephes' exp2f.
INLINE __m256 exp2(__m256 x) {
  // If either operand is NaN, the instruction returns the second.
  x = _mm256_min_ps(_mm256_set1_ps(128.f), _mm256_max_ps(_mm256_set1_ps(-126.f), x));
  const __m256 whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m256 rest = _mm256_sub_ps(x, whole);
  __m256 sum = _mm256_set1_ps(1.5353362e-4f);
  for (float term : {1.3398874e-3f, 9.6184373e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f})
    sum = _mm256_fmadd_ps(sum, rest, _mm256_set1_ps(term));
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_mul_ps(sum, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

// sums += a [ROWS, k] x w, strips of [k, STRIP] that lie `apart` numbers from each other.
template <int ROWS, int STRIPS>
INLINE void multiply_strips(const float* w, size_t apart, int inputs, const float* a, size_t stride,
                            __m256 sums[ROWS][STRIPS * PAIR]) {
  for (int k = 0; k < inputs; k++, w += STRIP) {
    __m256 x[STRIPS * PAIR];
    for (int z = 0; z < STRIPS * PAIR; z++) x[z] = _mm256_loadu_ps(w + z / PAIR * apart + z % PAIR * 8);
    for (int m = 0; m < ROWS; m++) {
      const __m256 y = _mm256_broadcast_ss(a + m * stride + k);
      for (int z = 0; z < STRIPS * PAIR; z++) sums[m][z] = _mm256_fmadd_ps(x[z], y, sums[m][z]);
    }
  }
}

template <int ROWS>
INLINE void multiply_strip(const float* w, int inputs, const float* a, size_t stride, Vector sums[ROWS][PAIR]) {
  multiply_strips<ROWS, 1>(w, 0, inputs, a, stride, sums);
}

#include "vec/activations.hpp"

AVX2_END

}  // namespace with_avx2
}  // namespace kvcast
#endif
