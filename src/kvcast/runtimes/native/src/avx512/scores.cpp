// Rows of scores with AVX-512.
#include "avx512/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = first(count - i);
    _mm512_mask_storeu_ps(out + i, there, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, halves + i)));
  }
}

constexpr int FLOATS = 16;  // of a Vector

INLINE Vector load(const float* from) { return _mm512_loadu_ps(from); }
INLINE void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
INLINE Vector greater(Vector a, Vector b) { return _mm512_max_ps(a, b); }

#include "vec/scores.hpp"


// Without a loop over numbers one by one, which the few of a tile would leave compilers with.
Softmax exponentials(const float* x, const float* added, int count) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY);
  __m512 sums[VECTORS], most = nothing, sum = _mm512_setzero_ps();
  for (int z = 0; z < VECTORS; z++) {
    const __mmask16 there = first(count - z * 16);
    const __m512 bias = _mm512_maskz_loadu_ps(there, added + z * 16);
    sums[z] = _mm512_mask_add_ps(nothing, there, _mm512_maskz_loadu_ps(there, x + z * 16), bias);
    most = _mm512_max_ps(most, sums[z]);
  }
  const float peak = _mm512_reduce_max_ps(most);
  if (peak < LEAST) return {peak, 0};  // none takes part
  for (const __m512& part : sums)
    sum = _mm512_add_ps(sum, exp2(_mm512_mul_ps(_mm512_sub_ps(part, _mm512_set1_ps(peak)), _mm512_set1_ps(LOG2_E))));
  return {peak, _mm512_reduce_add_ps(sum)};
}

}  // namespace

AVX512_END

const Scores avx512_scores = {read_line, softmax, standardise, add_medians, exponentials, peaks, sums, weights};

}  // namespace kvcast
#endif
