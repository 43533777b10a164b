// Attention over a part of positions with AVX2, in fp32 throughout.
#include "avx2/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

constexpr int AT_ONCE = 6;  // queries that share values: 6 x 2 sums and 2 values fit into 16 registers

void rotate(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; i += 8) {
    const int there = half - i;
    const __m256 a = load(x + i, there), b = load(x + half + i, there);
    const __m256 c = load(cosines + i, there), s = load(sines + i, there);
    with_avx2::store(out + i, there, _mm256_fmsub_ps(a, c, _mm256_mul_ps(b, s)));
    with_avx2::store(out + half + i, there, _mm256_fmadd_ps(b, c, _mm256_mul_ps(a, s)));
  }
}

void store_codes(const float* x, int count, int8_t* to) {
  __m256 most_of = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
  for (int i = 0; i < count; i += 8) {
    const __m256 v = load(x + i, count - i);
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    most_of = _mm256_max_ps(most_of, magnitude(v));
  }
  const float most = _mm256_movemask_ps(unordered) ? NAN : greatest(most_of);
  const bool is_zero = most < SMALLEST;
  const float scale = is_zero ? 0.f : most / 127.f;
  const __m256 inverse = _mm256_set1_ps(is_zero ? 0.f : 127.f / most);
  for (int i = 0; i < count; i += 8) {
    const __m256i whole = _mm256_cvtps_epi32(_mm256_mul_ps(load(x + i, count - i), inverse));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    int8_t codes[16];
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm_packs_epi16(words, words));
    std::memcpy(to + i, codes, std::min(8, count - i));
  }
  std::memcpy(to + count, &scale, sizeof scale);
}

void store_numbers(const float* x, int count, Number number, void* to) {
  if (number == Number::INT8) return store_codes(x, count, static_cast<int8_t*>(to));
  for (int i = 0; i < count; i += 8) {
    const __m256 v = load(x + i, count - i);
    if (number == Number::F32) {
      with_avx2::store(static_cast<float*>(to) + i, count - i, v);
    } else {
      uint16_t halves[8];
      _mm_storeu_si128(reinterpret_cast<__m128i*>(halves), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
      std::memcpy(static_cast<uint16_t*>(to) + i, halves, std::min(8, count - i) * sizeof(uint16_t));
    }
  }
}

// The total of each of 8 vectors, in order. Each is summed in the same order, whatever its place.
INLINE __m256 totals(const __m256 (&x)[8]) {
  const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
  const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

// Numbers from one line to the next; after codes lies their scale.
template <class T>
constexpr size_t pitch(int head_dim) {
  return line_bytes(sizeof(T) == sizeof(float) ? Number::F32 : sizeof(T) == 2 ? Number::F16 : Number::INT8, head_dim) / sizeof(T);
}

// How many keys are taken at once, so that there are 8 sums.
constexpr int keys_at_once(int queries) { return queries == 1 ? 8 : queries == 2 ? 4 : 2; }

// Scores of QUERIES queries against keys [count, d]. DIM is d; 0: any. Lanes are numbers of a key.
// `scores` is filled past count, up to a multiple of 8.
template <class T, int QUERIES, int DIM>
void score_keys(const T* key, int count, int head_dim, const float* query, float* scores) {
  constexpr int KEYS = keys_at_once(QUERIES);
  const int d = DIM ? DIM : head_dim, width = padded(d), whole = d / 8 * 8;
  for (int t = 0; t < count; t += KEYS) {
    // The last keys stand in for keys past the end.
    const T* lines[KEYS];
    for (int i = 0; i < KEYS; i++) lines[i] = key + std::min(t + i, count - 1) * pitch<T>(d);
    fetch_ahead(key + t * pitch<T>(d), KEYS * pitch<T>(d) * sizeof(T));
    __m256 sums[8];
    for (int i = 0; i < 8; i++) sums[i] = _mm256_setzero_ps();
    for (int j = 0; j < whole; j += 8) {
      __m256 q[QUERIES];
      for (int m = 0; m < QUERIES; m++) q[m] = load(query + m * width + j);
      for (int i = 0; i < KEYS; i++) {
        const __m256 k = load(lines[i] + j);
        for (int m = 0; m < QUERIES; m++) sums[m * KEYS + i] = _mm256_fmadd_ps(k, q[m], sums[m * KEYS + i]);
      }
    }
    if (whole < d)
      for (int i = 0; i < KEYS; i++) {
        const __m256 k = load(lines[i] + whole, d - whole);
        for (int m = 0; m < QUERIES; m++)
          sums[m * KEYS + i] = _mm256_fmadd_ps(k, load(query + m * width + whole), sums[m * KEYS + i]);
      }
    alignas(32) float scored[8];
    _mm256_store_ps(scored, totals(sums));
    for (int m = 0; m < QUERIES; m++) std::memcpy(scores + m * SCORES + t, scored + m * KEYS, KEYS * sizeof(float));
  }
}

#include "vec/value_mixing.hpp"

// Scores first .. last become shares, and scores around them up to whole vectors 0.
Softmax share(float* scores, int first, int last, const float* bias, float softcap) {
  const __m256 nothing = _mm256_set1_ps(-INFINITY), log2_e = _mm256_set1_ps(LOG2_E);
  const int begin = first / 8 * 8;
  __m256 most_of = nothing, unordered = _mm256_setzero_ps();
  for (int t = begin; t < last; t += 8) {
    const __m256i there = _mm256_andnot_si256(with_avx2::first(first - t), with_avx2::first(last - t));
    __m256 x = load(scores + t);
    if (softcap != 0) {
      const __m256 cap = _mm256_set1_ps(softcap);
      x = _mm256_mul_ps(cap, tanh(_mm256_div_ps(x, cap)));
    }
    if (bias != nullptr) x = _mm256_add_ps(x, _mm256_maskload_ps(bias + t, there));
    x = _mm256_blendv_ps(nothing, x, _mm256_castsi256_ps(there));
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    most_of = _mm256_max_ps(most_of, x);
    _mm256_storeu_ps(scores + t, x);
  }
  const float most = _mm256_movemask_ps(unordered) ? NAN : greatest(most_of);
  const bool is_empty = most == -INFINITY;
  const __m256 peak = _mm256_set1_ps(is_empty ? 0.f : most);
  __m256 sum = _mm256_setzero_ps();
  for (int t = begin; t < last; t += 8) {
    const __m256 x = _mm256_mul_ps(_mm256_sub_ps(load(scores + t), peak), log2_e);
    const __m256 counts = _mm256_cmp_ps(x, _mm256_set1_ps(-126.f), _CMP_NLT_UQ);  // NaN does
    const __m256 part = _mm256_and_ps(counts, exp2(x));
    sum = _mm256_add_ps(sum, part);
    _mm256_storeu_ps(scores + t, part);
  }
  return {most, is_empty ? 0.f : total(sum)};
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
