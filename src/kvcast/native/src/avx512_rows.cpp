// Norms and activations with AVX-512.
#include "avx512.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  __m512 sum = _mm512_setzero_ps(), squares = sum;
  for (int i = 0; i < width; i += 16) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first(width - i), x + i));
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / width);
  for (int i = 0; i < width; i += 16) {
    const __mmask16 there = first(width - i);
    const __m512 d = _mm512_maskz_sub_ps(there, _mm512_maskz_loadu_ps(there, x + i), mean);
    squares = _mm512_fmadd_ps(d, d, squares);
  }
  const __m512 factor = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares) / width + epsilon));
  for (int i = 0; i < width; i += 16) {
    const __mmask16 there = first(width - i);
    const __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(there, x + i), mean), factor);
    const __m512 g = _mm512_maskz_loadu_ps(there, gain + i), b = _mm512_maskz_loadu_ps(there, bias + i);
    _mm512_mask_storeu_ps(out + i, there, _mm512_fmadd_ps(d, g, b));
  }
}

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
void gelu(float* to, int count) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = first(count - i);
    const __m512 x = _mm512_maskz_loadu_ps(there, to + i), one = _mm512_set1_ps(1.f);
    const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
      sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(term));
    const __m512 power = exp2(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-LOG2_E)));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(sum, t), _mm512_mul_ps(power, _mm512_set1_ps(0.5f)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 phi = _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, tail), tail);
    _mm512_mask_storeu_ps(to + i, there, _mm512_mul_ps(x, phi));
  }
}

}  // namespace

AVX512_END

const Rows avx512_rows = {layer_norm, gelu};

}  // namespace kvcast
#endif
