// Shared by the parts of the AVX-512 instruction set.
#pragma once
#include "kernels.hpp"
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

// Functions between these two use AVX-512, whatever the rest is compiled for. No header may be included
// between them: its definitions would be compiled for AVX-512 and could be taken for all files.
#if defined(__clang__)
// One literal: clang rejects adjacent string literals here.
#define AVX512_BEGIN \
  _Pragma("clang attribute push(__attribute__((target(\"avx512f,avx512bw,avx512vl,avx512vnni,fma,f16c\"))), apply_to = function)")
#define AVX512_END _Pragma("clang attribute pop")
#else
#define AVX512_BEGIN            \
  _Pragma("GCC push_options") \
      _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512vnni,fma,f16c\")")
#define AVX512_END _Pragma("GCC pop_options")
#endif

#define INLINE inline __attribute__((always_inline))

namespace kvcast {

constexpr float LOG2_E = 1.44269504f;
constexpr int VECTORS = BLOCK / 16;

extern const Peaks avx512_peaks;
extern const Gemm avx512_gemm;
extern const Rows avx512_rows;
extern const Attention avx512_attention;
extern const EncoderAttention avx512_encoder_attention;
extern const EncoderAttention avx512_bf16_encoder_attention;
extern const PromptAttention avx512_prompt_attention;
extern const Scores avx512_scores;
extern const Reading avx512_reading;

AVX512_BEGIN

using Vector = __m512;
using Mask = __mmask16;
using Some = __mmask16;     // lane mask of a partial vector, in this ISA's form
constexpr int FLOATS = 16;  // of a Vector
constexpr int SUMS = 1;     // that norms take in turn

// The first `count` of 16 lanes, clamped to 0 .. 16.
INLINE Mask first(int count) {
  return count >= 16 ? 0xffff : count > 0 ? static_cast<__mmask16>((1u << count) - 1) : 0;
}
INLINE Some some(int count) { return first(count); }
INLINE Mask between(int begin, int end) { return first(end) & ~first(begin); }
INLINE Vector keep(Mask there, Vector x) { return _mm512_maskz_mov_ps(there, x); }  // elsewhere 0
INLINE Vector select(Mask there, Vector x, Vector other) { return _mm512_mask_blend_ps(there, other, x); }

INLINE __m512 load(const float* from) { return _mm512_loadu_ps(from); }
INLINE __m512 load(const uint16_t* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
INLINE __m512 load(const int8_t* from) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
INLINE __m512 load_between(const float* from, int begin, int end) { return _mm512_maskz_loadu_ps(between(begin, end), from); }
INLINE __m512 load(const float* from, __mmask16 there) { return _mm512_maskz_loadu_ps(there, from); }
INLINE __m512 load(const uint16_t* from, __mmask16 there) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, from));
}
INLINE __m512 load(const int8_t* from, __mmask16 there) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(there, from)));
}
INLINE void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
INLINE void store(float* to, Some there, Vector x) { _mm512_mask_storeu_ps(to, there, x); }
INLINE void store(uint16_t* to, Some there, Vector x) {
  _mm256_mask_storeu_epi16(to, there, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
INLINE void store(int8_t* to, Some there, Vector x) { _mm512_mask_cvtepi32_storeu_epi8(to, there, _mm512_cvtps_epi32(x)); }

// Arithmetic under the names that shared code has for it.
INLINE Vector all(float x) { return _mm512_set1_ps(x); }
INLINE Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
INLINE Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
INLINE Vector difference(Vector a, Vector b, Vector c, Vector d) { return _mm512_fmsub_ps(a, b, _mm512_mul_ps(c, d)); }
INLINE Vector greater(Vector a, Vector b) { return _mm512_max_ps(a, b); }
INLINE Vector magnitude(Vector x) { return _mm512_abs_ps(x); }
INLINE Vector positive(Vector x) { return _mm512_max_ps(x, _mm512_setzero_ps()); }  // of NaN 0, as everywhere
INLINE Vector if_less(Vector a, Vector b, Vector less, Vector other) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), other, less);
}
INLINE Vector by_sign(Vector x, Vector negative, Vector other) {
  return if_less(x, _mm512_setzero_ps(), negative, other);
}

// x, and 0 where `of` is less than `bound`; NaN is not.
INLINE Vector unless_less(Vector of, Vector bound, Vector x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(of, bound, _CMP_NLT_UQ), x);
}

// Horizontal reductions, each in a fixed order.
INLINE float total(Vector x) { return _mm512_reduce_add_ps(x); }
INLINE float greatest(Vector x) { return _mm512_reduce_max_ps(x); }

// The elementwise maximum; NaN if either is.
struct Peak {
  Vector most;
  __mmask16 unordered = 0;

  INLINE void take(Vector x) {
    unordered |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    most = _mm512_max_ps(most, x);
  }
  INLINE float value() const { return unordered ? NAN : _mm512_reduce_max_ps(most); }
};

// 2^x to 2e-7 relative; far below 0 nearly 0; NaN stays. Cephes' exp2f.
INLINE __m512 exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.f), x);  // if either operand is NaN, the instruction returns the second
  const __m512 whole = _mm512_roundscale_ps(x, 0), rest = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.5353362e-4f);
  for (float term : {1.3398874e-3f, 9.6184373e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
  return _mm512_scalef_ps(sum, whole);
}

// tanh to 2e-7.
INLINE __m512 tanh(__m512 x) {
  const __m512 unit = _mm512_set1_ps(1.f), two = _mm512_set1_ps(2.f), square = _mm512_mul_ps(x, x);
  const __m512 power = exp2(_mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(2 * LOG2_E)), _mm512_set1_ps(126.f)));
  const __m512 far = _mm512_sub_ps(unit, _mm512_div_ps(two, _mm512_add_ps(power, unit)));
  __m512 sum = _mm512_set1_ps(62 / 2835.f);
  for (float term : {-17 / 315.f, 2 / 15.f, -1 / 3.f, 1.f}) sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(term));
  const __mmask16 is_near = _mm512_cmp_ps_mask(square, _mm512_set1_ps(0.0625f), _CMP_LT_OQ);
  return _mm512_mask_mul_ps(far, is_near, sum, x);
}

#include "vec/activations.hpp"

AVX512_END

}  // namespace kvcast
#endif
