// Rows of scores with AVX2.
#include "avx2/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX2_BEGIN

namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  const int whole = count / 8 * 8;
  for (int i = 0; i < whole; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
  for (int i = whole; i < count; i++) out[i] = _cvtsh_ss(halves[i]);
}

using namespace with_avx2;
#include "vec/scores.hpp"

// Without a loop over numbers one by one, which the few of a tile would leave compilers with.
Softmax exponentials(const float* x, const float* added, int count) {
  const __m256 nothing = _mm256_set1_ps(-INFINITY);
  __m256 sums[VECTORS], most = nothing, sum = _mm256_setzero_ps();
  for (int z = 0; z < VECTORS; z++) {
    const int there = count - z * 8;
    sums[z] = _mm256_add_ps(load(x + z * 8, there), load(added + z * 8, there));
    if (there < 8) sums[z] = _mm256_blendv_ps(nothing, sums[z], _mm256_castsi256_ps(first(there)));
    most = _mm256_max_ps(most, sums[z]);
  }
  const float peak = with_avx2::greatest(most);
  if (peak < LEAST) return {peak, 0};  // none takes part
  for (const __m256& part : sums)
    sum = _mm256_add_ps(sum, exp2(_mm256_mul_ps(_mm256_sub_ps(part, _mm256_set1_ps(peak)), _mm256_set1_ps(LOG2_E))));
  return {peak, with_avx2::total(sum)};
}

}  // namespace

AVX2_END

const Scores avx2_scores = {read_line, softmax, standardise, add_medians, exponentials, peaks, sums, weights};

}  // namespace kvcast
#endif
