// Rows of files with AVX2.
#include "avx2/vec.hpp"
#include "halves.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

void halves(const uint8_t* from, int count, float* out) {
  int i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  for (; i < count; i++) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    out[i] = _cvtsh_ss(bits);
  }
}

INLINE void to_halves_and_back(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] = _cvtsh_ss(_cvtss_sh(x[i], 0));
}

#include "vec/dequantize.hpp"

}  // namespace

AVX2_END

}  // namespace with_avx2

const Reading avx2_reading = with_avx2::reading;

}  // namespace kvcast
#endif
