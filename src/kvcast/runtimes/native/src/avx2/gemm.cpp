// GEMM and GEMV with AVX2. In int8 a pair of products must fit into 16 bits: magnitudes of weights (128 at most) times
// activations (127 at most) that take the weights' signs.
#include "avx2/vec.hpp"
#include "halves.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

constexpr uint8_t SIGNS = 0;

INLINE __m256i begin(int32_t) { return _mm256_setzero_si256(); }

INLINE void add(__m256i& sum, __m256i weights, __m256i row) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(row, weights));
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Weights are 0 .. 63.
INLINE void add_sixes(__m256i& sum, __m256i weights, __m256i row) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(weights, row), _mm256_set1_epi16(1)));
}

// A group's 8 pairs of products, 15 * 127 each at most, fit into 16 bits.
INLINE void add_nibbles(__m256i& sum, __m256i weights, __m256i row) {
  sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(weights, row));
}

INLINE __m256i end_nibbles(__m256i sum) { return _mm256_madd_epi16(sum, _mm256_set1_epi16(1)); }

#include "avx2/gemm.hpp"

}  // namespace

AVX2_END

}  // namespace with_avx2

const Gemm avx2_gemm = with_avx2::GEMM;

}  // namespace kvcast
#endif
