// Activations with AVX-512, for the ends of products and for rows.
#pragma once
#include "avx512.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

// 1 / (1 + e^-x)
INLINE __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  return _mm512_div_ps(one, _mm512_add_ps(one, exp2(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2_E)))));
}

struct Same {
  INLINE __m512 operator()(__m512 x) const { return x; }
};

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
struct Gelu {
  INLINE __m512 operator()(__m512 x) const {
    const __m512 one = _mm512_set1_ps(1.f), z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
      sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(term));
    const __m512 power = exp2(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-LOG2_E)));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(sum, t), _mm512_mul_ps(power, _mm512_set1_ps(0.5f)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mul_ps(x, _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, tail), tail));
  }
};

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u)
struct GeluTanh {
  INLINE __m512 operator()(__m512 x) const {
    const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(2 * 0.79788456f * 0.044715f),
                                         _mm512_set1_ps(2 * 0.79788456f));
    return _mm512_mul_ps(x, sigmoid(_mm512_mul_ps(x, cubic)));
  }
};

struct Silu {
  INLINE __m512 operator()(__m512 x) const { return _mm512_mul_ps(x, sigmoid(x)); }
};

struct Relu {
  INLINE __m512 operator()(__m512 x) const { return _mm512_max_ps(x, _mm512_setzero_ps()); }
};

// Cephes' tanhf: a polynomial near 0, where 2 * sigmoid(2 x) - 1 would lose digits.
struct Tanh {
  INLINE __m512 operator()(__m512 x) const {
    const __m512 z = _mm512_mul_ps(x, x), one = _mm512_set1_ps(1.f);
    __m512 sum = _mm512_set1_ps(-5.70498872745e-3f);
    for (float term : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
      sum = _mm512_fmadd_ps(sum, z, _mm512_set1_ps(term));
    const __m512 near = _mm512_fmadd_ps(_mm512_mul_ps(sum, z), x, x);
    const __m512 far = _mm512_fmsub_ps(_mm512_set1_ps(2.f), sigmoid(_mm512_add_ps(x, x)), one);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0.625f), _CMP_LT_OQ), far, near);
  }
};

// Calls work(f) where f(x) is the activation.
template <class Work>
INLINE void with_activation(Activation activation, Work&& work) {
  switch (activation) {
    case Activation::GELU: return work(Gelu());
    case Activation::GELU_TANH: return work(GeluTanh());
    case Activation::SILU: return work(Silu());
    case Activation::RELU: return work(Relu());
    case Activation::TANH: return work(Tanh());
    default: return work(Same());
  }
}

AVX512_END

}  // namespace kvcast
#endif
