// Rows of files with AVX-512.
#include "avx512/vec.hpp"
#include "halves.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx512 {

AVX512_BEGIN

namespace {

void halves(const uint8_t* from, int count, float* out) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = count - i < 16 ? static_cast<__mmask16>((1 << (count - i)) - 1) : 0xffff;
    _mm512_mask_storeu_ps(out + i, there, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, from + 2 * static_cast<size_t>(i))));
  }
}

INLINE void to_halves_and_back(float* x, int count) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = count - i < 16 ? static_cast<__mmask16>((1 << (count - i)) - 1) : 0xffff;
    const __m512 given = _mm512_maskz_loadu_ps(there, x + i);
    _mm512_mask_storeu_ps(x + i, there, _mm512_cvtph_ps(_mm512_cvtps_ph(given, 0)));
  }
}

#include "vec/dequantize.hpp"

}  // namespace

AVX512_END

}  // namespace with_avx512

const Reading avx512_reading = with_avx512::reading;

}  // namespace kvcast
#endif
