// Norms and activations with AVX2.
#include "avx2/activations.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

// Numbers i.. of x [width], or `otherwise` where there is no x.
INLINE __m256 load_or(const float* x, int i, int width, float otherwise) {
  return x ? load(x + i, width - i) : _mm256_set1_ps(otherwise);
}

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  __m256 sum = _mm256_setzero_ps(), squares = sum;
  for (int i = 0; i < width; i += 8) sum = _mm256_add_ps(sum, load(x + i, width - i));
  const __m256 mean = _mm256_set1_ps(total(sum) / width);
  for (int i = 0; i < width; i += 8) {
    const __m256 there = _mm256_castsi256_ps(first(width - i));
    const __m256 d = _mm256_and_ps(there, _mm256_sub_ps(load(x + i, width - i), mean));
    squares = _mm256_fmadd_ps(d, d, squares);
  }
  const __m256 factor = _mm256_set1_ps(1 / std::sqrt(total(squares) / width + epsilon));
  for (int i = 0; i < width; i += 8) {
    const __m256 d = _mm256_mul_ps(_mm256_sub_ps(load(x + i, width - i), mean), factor);
    store(out + i, width - i, _mm256_fmadd_ps(d, load_or(gain, i, width, 1), load_or(bias, i, width, 0)));
  }
}

void rms_norm(const float* x, const float* gain, float epsilon, int width, float* out) {
  __m256 squares = _mm256_setzero_ps();
  for (int i = 0; i < width; i += 8) {
    const __m256 v = load(x + i, width - i);
    squares = _mm256_fmadd_ps(v, v, squares);
  }
  const __m256 factor = _mm256_set1_ps(1 / std::sqrt(total(squares) / width + epsilon));
  for (int i = 0; i < width; i += 8)
    store(out + i, width - i, _mm256_mul_ps(_mm256_mul_ps(load(x + i, width - i), factor), load_or(gain, i, width, 1)));
}

void gate(Activation activation, const float* gate, const float* up, int count, float* out) {
  with_activation(activation, [&](auto f) {
    for (int i = 0; i < count; i += 8)
      store(out + i, count - i, _mm256_mul_ps(f(load(gate + i, count - i)), load(up + i, count - i)));
  });
}

#include "vec/rows.hpp"

}  // namespace

AVX2_END

}  // namespace with_avx2

const Rows avx2_rows = {with_avx2::layer_norm, with_avx2::rms_norm, with_avx2::gate, with_avx2::state_columns, with_avx2::convolve};

}  // namespace kvcast
#endif
