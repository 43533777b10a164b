// Attention over a part of positions with AVX-512, in fp32 throughout.
#include "avx512/columns.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int AT_ONCE = 6;  // queries that share values: 6 x 4 sums and 4 values fit in 32 registers

void rotate(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; i += 16) {
    const __mmask16 there = first(half - i);
    const __m512 a = _mm512_maskz_loadu_ps(there, x + i), b = _mm512_maskz_loadu_ps(there, x + half + i);
    const __m512 c = _mm512_maskz_loadu_ps(there, cosines + i), s = _mm512_maskz_loadu_ps(there, sines + i);
    _mm512_mask_storeu_ps(out + i, there, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
    _mm512_mask_storeu_ps(out + half + i, there, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
  }
}

void store_codes(const float* x, int count, int8_t* to) {
  __m512 most_of = _mm512_setzero_ps();
  __mmask16 unordered = 0;
  for (int i = 0; i < count; i += 16) {
    const __m512 v = _mm512_maskz_loadu_ps(first(count - i), x + i);
    unordered |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    most_of = _mm512_max_ps(most_of, _mm512_abs_ps(v));
  }
  const float most = unordered ? NAN : _mm512_reduce_max_ps(most_of);
  const bool is_zero = most < SMALLEST;
  const float scale = is_zero ? 0.f : most / 127.f;
  const __m512 inverse = _mm512_set1_ps(is_zero ? 0.f : 127.f / most);
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = first(count - i);
    const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(there, x + i), inverse);
    _mm512_mask_cvtepi32_storeu_epi8(to + i, there, _mm512_cvtps_epi32(v));
  }
  std::memcpy(to + count, &scale, sizeof scale);
}

void store(const float* x, int count, Number number, void* to) {
  if (number == Number::INT8) return store_codes(x, count, static_cast<int8_t*>(to));
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = first(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(there, x + i);
    if (number == Number::F32)
      _mm512_mask_storeu_ps(static_cast<float*>(to) + i, there, v);
    else
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to) + i, there,
                               _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
}

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

// Scores of QUERIES queries against keys [count, d]. DIM is d; 0: any. Lanes are numbers of a key.
// `scores` is filled past count, up to a multiple of 16.
template <class T, int QUERIES, int DIM>
void score_keys(const T* key, int count, int head_dim, const float* query, float* scores) {
  constexpr int KEYS = keys_at_once(QUERIES);
  const int d = DIM ? DIM : head_dim, width = padded(d), whole = d / 16 * 16;
  const __mmask16 there = first(d - whole);
  for (int t = 0; t < count; t += KEYS) {
    // The last keys stand in for keys past the end.
    const T* lines[KEYS];
    for (int i = 0; i < KEYS; i++) lines[i] = key + std::min(t + i, count - 1) * pitch<T>(d);
    fetch_ahead(key + t * pitch<T>(d), KEYS * pitch<T>(d) * sizeof(T));
    __m512 sums[16];
    for (int i = 0; i < 16; i++) sums[i] = _mm512_setzero_ps();
    for (int j = 0; j < whole; j += 16) {
      __m512 q[QUERIES];
      for (int m = 0; m < QUERIES; m++) q[m] = _mm512_loadu_ps(query + m * width + j);
      for (int i = 0; i < KEYS; i++) {
        const __m512 k = load(lines[i] + j);
        for (int m = 0; m < QUERIES; m++) {
          __m512& sum = sums[SLOT[m * KEYS + i]];
          sum = _mm512_fmadd_ps(k, q[m], sum);
        }
      }
    }
    if (there) {
      for (int i = 0; i < KEYS; i++) {
        const __m512 k = load(lines[i] + whole, there);
        for (int m = 0; m < QUERIES; m++) {
          __m512& sum = sums[SLOT[m * KEYS + i]];
          sum = _mm512_fmadd_ps(k, _mm512_loadu_ps(query + m * width + whole), sum);
        }
      }
    }
    const __m512 scored = totals(sums);
    if (QUERIES == 1) _mm512_storeu_ps(scores + t, scored);
    if (QUERIES == 2) {
      _mm256_storeu_ps(scores + t, _mm512_castps512_ps256(scored));
      _mm256_storeu_ps(scores + SCORES + t, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(scored), 1)));
    }
    if (QUERIES > 2) {
      _mm_storeu_ps(scores + t, _mm512_castps512_ps128(scored));
      _mm_storeu_ps(scores + SCORES + t, _mm512_extractf32x4_ps(scored, 1));
      _mm_storeu_ps(scores + 2 * SCORES + t, _mm512_extractf32x4_ps(scored, 2));
      if (QUERIES > 3) _mm_storeu_ps(scores + 3 * SCORES + t, _mm512_extractf32x4_ps(scored, 3));
    }
  }
}

// Scores first .. last become shares, and scores around them up to whole vectors 0.
Softmax share(float* scores, int first, int last, const float* bias, float softcap) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY), log2_e = _mm512_set1_ps(LOG2_E);
  const int begin = first / 16 * 16;
  __m512 most_of = nothing;
  __mmask16 unordered = 0;
  for (int t = begin; t < last; t += 16) {
    const __mmask16 there = kvcast::first(last - t) & ~kvcast::first(first - t);
    __m512 x = _mm512_load_ps(scores + t);
    if (softcap != 0) {
      const __m512 cap = _mm512_set1_ps(softcap);
      x = _mm512_mul_ps(cap, tanh(_mm512_div_ps(x, cap)));
    }
    if (bias != nullptr) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(there, bias + t));
    x = _mm512_mask_blend_ps(there, nothing, x);
    unordered |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    most_of = _mm512_max_ps(most_of, x);
    _mm512_store_ps(scores + t, x);
  }
  float most = unordered ? NAN : _mm512_reduce_max_ps(most_of);
  const bool is_empty = most == -INFINITY;
  const __m512 peak = _mm512_set1_ps(is_empty ? 0.f : most);
  __m512 sum = _mm512_setzero_ps();
  for (int t = begin; t < last; t += 16) {
    const __m512 x = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(scores + t), peak), log2_e);
    const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.f), _CMP_NLT_UQ);  // NaN does
    const __m512 part = _mm512_maskz_mov_ps(counts, exp2(x));
    sum = _mm512_add_ps(sum, part);
    _mm512_store_ps(scores + t, part);
  }
  return {most, is_empty ? 0.f : _mm512_reduce_add_ps(sum)};
}

// mixed [ROWS, width] += shares [ROWS, SCORES] x values [count, d], of COLUMNS * 16 numbers of d.
template <class T, int ROWS, int COLUMNS>
void mix_values(const T* value, int count, int head_dim, const float* shares, float* mixed, __mmask16 there) {
  const int width = padded(head_dim);
  __m512 sums[ROWS][COLUMNS];
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) sums[m][z] = _mm512_loadu_ps(mixed + m * width + z * 16);
  for (int t = 0; t < count; t++, value += pitch<T>(head_dim)) {
    fetch_ahead(value, COLUMNS * 16 * sizeof(T));
    __m512 v[COLUMNS];
    for (int z = 0; z < COLUMNS; z++) v[z] = COLUMNS == 1 ? load(value, there) : load(value + z * 16);
    for (int m = 0; m < ROWS; m++) {
      const __m512 factor = _mm512_set1_ps(shares[m * SCORES + t]);
      for (int z = 0; z < COLUMNS; z++) sums[m][z] = _mm512_fmadd_ps(v[z], factor, sums[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) _mm512_storeu_ps(mixed + m * width + z * 16, sums[m][z]);
}

template <class T, int ROWS>
void mix_rows(const T* value, int count, int head_dim, const float* shares, float* mixed) {
  int d = 0;
  for (; d + BLOCK <= head_dim; d += BLOCK)
    mix_values<T, ROWS, VECTORS>(value + d, count, head_dim, shares, mixed + d, 0xffff);
  for (; d < head_dim; d += 16)
    mix_values<T, ROWS, 1>(value + d, count, head_dim, shares, mixed + d, first(head_dim - d));
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

const Attention avx512_attention = {rotate, store, attend, MANY_QUERIES};

}  // namespace kvcast
#endif
