// Rows of scores with AVX2.
#include "avx2.hpp"
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

#include "score_rows.hpp"

}  // namespace

AVX2_END

const Scores avx2_scores = {read_line, softmax, standardise, add_medians, exponentials};

}  // namespace kvcast
#endif
