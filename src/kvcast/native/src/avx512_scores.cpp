// Rows of scores with AVX-512.
#include "avx512.hpp"
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

#include "score_rows.hpp"

}  // namespace

AVX512_END

const Scores avx512_scores = {read_line, softmax, standardise, add_medians, exponentials};

}  // namespace kvcast
#endif
