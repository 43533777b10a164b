// Attention over a part of positions with AVX-512, in fp32 throughout.
#include "avx512/columns.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

// Where `totals` wants the sums whose total comes i-th.
constexpr int SLOT[16] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15};

// The total of each of 16 vectors. Each is summed in the same order, whatever its slot.
INLINE __m512 totals(__m512 (&x)[16]) {
  for (int i = 0; i < 8; i++)
    x[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xff00, x[i], x[i + 8]), _mm512_shuffle_f32x4(x[i], x[i + 8], 0x4e));
  for (int i = 0; i < 4; i++)
    x[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 4], 0x88), _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd));
  for (int i = 0; i < 2; i++)
    x[i] = _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, x[i], x[i + 2]), _mm512_shuffle_ps(x[i], x[i + 2], 0x4e));
  return _mm512_add_ps(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd));
}

// How many keys are taken at once, so that there are 16 sums.
constexpr int keys_at_once(int queries) { return queries == 1 ? 16 : queries == 2 ? 8 : 4; }

constexpr int slot(int i) { return SLOT[i]; }

template <int QUERIES, int KEYS>
INLINE void store_totals(__m512 (&sums)[16], float* scores) {
  const __m512 scored = totals(sums);
  if (QUERIES == 1) _mm512_storeu_ps(scores, scored);
  if (QUERIES == 2) {
    _mm256_storeu_ps(scores, _mm512_castps512_ps256(scored));
    _mm256_storeu_ps(scores + SCORES, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(scored), 1)));
  }
  if (QUERIES > 2) {
    _mm_storeu_ps(scores, _mm512_castps512_ps128(scored));
    _mm_storeu_ps(scores + SCORES, _mm512_extractf32x4_ps(scored, 1));
    _mm_storeu_ps(scores + 2 * SCORES, _mm512_extractf32x4_ps(scored, 2));
    if (QUERIES > 3) _mm_storeu_ps(scores + 3 * SCORES, _mm512_extractf32x4_ps(scored, 3));
  }
}

#include "vec/attention.hpp"

template <class T>
void score(const Part& part, float* scores) {
  for (int i = 0, at = part.begin; i < 2; at += part.counts[i++]) {
    const auto take = part.head_dim == 64    ? score_queries<T, 64>
                      : part.head_dim == 128 ? score_queries<T, 128>
                                             : score_queries<T, 0>;
    take(static_cast<const T*>(part.keys[i]), part.counts[i], part.head_dim, part.query, part.queries, scores + at);
  }
}

// Positions that none of some queries sees are left out.
void score_by_columns(const Part& part, const float* columns, float* scores) {
  int first = PART, last = 0;
  for (int m = 0; m < part.queries; m++)
    if (part.first[m] < part.last[m]) first = std::min(first, part.first[m]), last = std::max(last, part.last[m]);
  const auto take = part.head_dim == 64    ? score_columns<64>
                    : part.head_dim == 128 ? score_columns<128>
                                           : score_columns<0>;
  take(columns, first, last, part.head_dim, part.query, part.queries, scores);
}

// As for few queries, which are taken from all in turn, over the part as floats.
void attend_many(const Part& all, float* scores, Softmax* softmax, float* mixed) {
  float* const columns = scores + MOST_QUERIES * SCORES;
  float* const values = columns + PART * padded(all.head_dim);
  const Scales scales(all);
  with_type(all.key_number, [&](auto number) { pack_columns<decltype(number)>(all, columns); });
  with_type(all.value_number, [&](auto number) { pack_values<decltype(number)>(all, values); });
  const int width = padded(all.head_dim), count = all.counts[0] + all.counts[1];
  Part part = all;
  part.value_number = Number::F32;
  part.values[0] = values + static_cast<size_t>(all.begin) * all.head_dim;
  part.counts[0] = count;
  part.counts[1] = 0;
  for (int m = 0; m < all.queries; m += MOST_QUERIES) {
    part.queries = std::min(MOST_QUERIES, all.queries - m);
    part.query = all.query + m * width;
    part.first = all.first + m;
    part.last = all.last + m;
    if (all.bias) part.bias = all.bias + m;
    score_by_columns(part, columns, scores);
    finish(part, scales, scores, softmax + m, mixed + m * width);
  }
}

void attend(const Part& part, float* scores, Softmax* softmax, float* mixed) {
  if (part.queries > MOST_QUERIES) return attend_many(part, scores, softmax, mixed);
  with_type(part.key_number, [&](auto number) { score<decltype(number)>(part, scores); });
  finish(part, Scales(part), scores, softmax, mixed);
}

}  // namespace

AVX512_END

const Attention avx512_attention = {rotate, store_numbers, attend, MANY_QUERIES};

}  // namespace kvcast
#endif
