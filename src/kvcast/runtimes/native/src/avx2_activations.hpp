// Activations with AVX2, for the ends of products and for rows.
#pragma once
#include "avx2.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

// 1 / (1 + e^-x)
INLINE __m256 sigmoid(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.f);
  return _mm256_div_ps(one, _mm256_add_ps(one, exp2(_mm256_mul_ps(x, _mm256_set1_ps(-LOG2_E)))));
}

struct Same {
  INLINE __m256 operator()(__m256 x) const { return x; }
};

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
struct Gelu {
  INLINE __m256 operator()(__m256 x) const {
    const __m256 one = _mm256_set1_ps(1.f), z = _mm256_mul_ps(magnitude(x), _mm256_set1_ps(0.70710678f));
    const __m256 t = _mm256_div_ps(one, _mm256_fmadd_ps(z, _mm256_set1_ps(0.3275911f), one));
    __m256 sum = _mm256_set1_ps(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
      sum = _mm256_fmadd_ps(sum, t, _mm256_set1_ps(term));
    const __m256 power = exp2(_mm256_mul_ps(_mm256_mul_ps(z, z), _mm256_set1_ps(-LOG2_E)));
    const __m256 tail = _mm256_mul_ps(_mm256_mul_ps(sum, t), _mm256_mul_ps(power, _mm256_set1_ps(0.5f)));
    return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, x));  // by x's sign
  }
};

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u)
struct GeluTanh {
  INLINE __m256 operator()(__m256 x) const {
    const __m256 cubic = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(2 * 0.79788456f * 0.044715f),
                                         _mm256_set1_ps(2 * 0.79788456f));
    return _mm256_mul_ps(x, sigmoid(_mm256_mul_ps(x, cubic)));
  }
};

struct Silu {
  INLINE __m256 operator()(__m256 x) const { return _mm256_mul_ps(x, sigmoid(x)); }
};

struct Relu {
  INLINE __m256 operator()(__m256 x) const { return _mm256_max_ps(x, _mm256_setzero_ps()); }
};

// Cephes' tanhf: a polynomial near 0, where 2 * sigmoid(2 x) - 1 would lose digits.
struct Tanh {
  INLINE __m256 operator()(__m256 x) const {
    const __m256 z = _mm256_mul_ps(x, x), one = _mm256_set1_ps(1.f);
    __m256 sum = _mm256_set1_ps(-5.70498872745e-3f);
    for (float term : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
      sum = _mm256_fmadd_ps(sum, z, _mm256_set1_ps(term));
    const __m256 near = _mm256_fmadd_ps(_mm256_mul_ps(sum, z), x, x);
    const __m256 far = _mm256_fmsub_ps(_mm256_set1_ps(2.f), sigmoid(_mm256_add_ps(x, x)), one);
    return _mm256_blendv_ps(far, near, _mm256_cmp_ps(magnitude(x), _mm256_set1_ps(0.625f), _CMP_LT_OQ));
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

AVX2_END

}  // namespace with_avx2
}  // namespace kvcast
#endif
