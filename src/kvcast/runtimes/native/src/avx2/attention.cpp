// Attention over a part of positions with AVX2, in fp32 throughout.
#include "avx2/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

// The total of each of 8 vectors, in order. Each is summed in the same order, whatever its place.
INLINE __m256 totals(const __m256 (&x)[8]) {
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

// How many keys are taken at once, so that there are 8 sums.
constexpr int keys_at_once(int queries) { return queries == 1 ? 8 : queries == 2 ? 4 : 2; }

constexpr int slot(int i) { return i; }

template <int QUERIES, int KEYS>
INLINE void store_totals(const __m256 (&sums)[8], float* scores) {
  alignas(32) float scored[8];
  _mm256_store_ps(scored, totals(sums));
  for (int m = 0; m < QUERIES; m++) std::memcpy(scores + m * SCORES, scored + m * KEYS, KEYS * sizeof(float));
}

#include "vec/attention.hpp"

template <class T>
void score(const Part& part, float* scores) {
  for (int i = 0, at = part.begin; i < 2; at += part.counts[i++]) {
    const auto take = part.head_dim == 64 ? score_queries<T, 64> : score_queries<T, 0>;
    take(static_cast<const T*>(part.keys[i]), part.counts[i], part.head_dim, part.query, part.queries, scores + at);
  }
}

void attend(const Part& part, float* scores, Softmax* softmax, float* mixed) {
  const Scales scales(part);
  with_type(part.key_number, [&](auto number) { score<decltype(number)>(part, scores); });
  finish(part, scales, scores, softmax, mixed);
}

}  // namespace

AVX2_END

}  // namespace with_avx2

const Attention avx2_attention = {with_avx2::rotate, with_avx2::store_numbers, with_avx2::attend};

}  // namespace kvcast
#endif
