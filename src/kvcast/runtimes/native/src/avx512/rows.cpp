// Norms and activations with AVX-512.
#include "avx512/activations.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

// Numbers i.. of x [width], or `otherwise` where there is no x.
INLINE __m512 load_or(const float* x, int i, __mmask16 there, float otherwise) {
  return x ? _mm512_maskz_loadu_ps(there, x + i) : _mm512_set1_ps(otherwise);
}

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
    _mm512_mask_storeu_ps(out + i, there, _mm512_fmadd_ps(d, load_or(gain, i, there, 1), load_or(bias, i, there, 0)));
  }
}

void rms_norm(const float* x, const float* gain, float epsilon, int width, float* out) {
  __m512 squares = _mm512_setzero_ps();
  for (int i = 0; i < width; i += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(first(width - i), x + i);
    squares = _mm512_fmadd_ps(v, v, squares);
  }
  const __m512 factor = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares) / width + epsilon));
  for (int i = 0; i < width; i += 16) {
    const __mmask16 there = first(width - i);
    const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(there, x + i), factor);
    _mm512_mask_storeu_ps(out + i, there, _mm512_mul_ps(v, load_or(gain, i, there, 1)));
  }
}

void gate(Activation activation, const float* gate, const float* up, int count, float* out) {
  with_activation(activation, [&](auto f) {
    for (int i = 0; i < count; i += 16) {
      const __mmask16 there = first(count - i);
      const __m512 v = f(_mm512_maskz_loadu_ps(there, gate + i));
      _mm512_mask_storeu_ps(out + i, there, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(there, up + i)));
    }
  });
}

constexpr int FLOATS = 16;  // of a Vector

INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
INLINE Vector load(const float* from, int count) { return _mm512_maskz_loadu_ps(first(count), from); }
INLINE void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
INLINE void store(float* to, int count, Vector x) { _mm512_mask_storeu_ps(to, first(count), x); }

#include "vec/rows.hpp"

}  // namespace

AVX512_END

const Rows avx512_rows = {layer_norm, rms_norm, gate, state_columns, convolve};

}  // namespace kvcast
#endif
