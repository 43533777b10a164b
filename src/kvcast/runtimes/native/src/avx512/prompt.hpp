// Attention of prompts with AVX-512: tiles of queries over parts of positions, each packed once for all of a tile.
//
// A vector's lanes are queries and each vector is of one position: nothing is added or compared across lanes. All
// products are of int8: queries, keys and values with a scale each, shares with the greatest of their query's as a
// scale. Hadamard's matrix turns heads first, which changes no product and spreads a few large numbers over all (QuaRot,
// arXiv:2404.00456); the results are turned back. A value's scale is a factor of its position's shares, so that shares
// are rounded as they count.
//
// The products are those of a class that the file brings: of AVX-512, or of AMX. All sums of codes are exact, so results
// are the same bits. The share of a position that a query does not see is 0, which adds nothing whatever its codes.
#pragma once
#include "avx512/columns.hpp"
#include "avx512/head.hpp"
#if defined(__x86_64__)

namespace kvcast {

constexpr int LANES = PROMPT_LANES;
constexpr int STRIP = 2 * LANES;  // queries that are multiplied at once
constexpr int FOUR = 4;           // codes that are multiplied at once
constexpr int WIDEST_PROMPT_HEAD = 256;
constexpr float NOT_SEEN = -1e30f;  // the greatest score of no positions: less than any, and finite
constexpr float LEAST_SCALE = 1e-18f;  // of values: its logarithm and its inverse are finite
constexpr float LOG2_MOST_SHARE = 7.994353f;  // the greatest share becomes 255, which no fraction of `DITHER` exceeds

// What is added to a position's shares before their fractions are cut off: small ones count right on average.
alignas(64) constexpr float DITHER[16] = {.03125f, .53125f, .28125f, .78125f, .15625f, .65625f, .40625f, .90625f,
                                          .09375f, .59375f, .34375f, .84375f, .21875f, .71875f, .46875f, .96875f};

AVX512_BEGIN

// Consecutive arrays, aligned to 64 bytes.
struct Layout {
  uint8_t* space;
  size_t bytes = 0;

  template <class T>
  INLINE void take(T*& array, size_t count) {
    array = reinterpret_cast<T*>(space + bytes);
    bytes += (count * sizeof(T) + 63) / 64 * 64;
  }
};

// A packed part. Products have `codes`: the codes of a key are filled up to multiples of that.
struct PromptPart {
  int head_width, width;             // d, filled up to vectors; codes of a key
  int8_t* key;                       // [PART, width]
  int32_t* key_offset;               // [PART]: -zero * the sum of a key's codes
  float* key_scale;                  // [PART]
  float *value_log, *value_inverse;  // [PART]: of the values' scales
  int8_t* value;                     // [PART, head_width] in an order of the products' own
  size_t bytes;

  INLINE PromptPart(const uint8_t* packed, int head_dim, int codes)
      : head_width(padded(head_dim)), width((head_dim + codes - 1) / codes * codes) {
    Layout layout{const_cast<uint8_t*>(packed)};
    layout.take(key, static_cast<size_t>(PART) * width);
    layout.take(key_offset, PART);
    for (float** of_position : {&key_scale, &value_log, &value_inverse}) layout.take(*of_position, PART);
    layout.take(value, static_cast<size_t>(PART) * head_width);
    bytes = layout.bytes;
  }
};

// A tile's scratch memory. Queries are in strips, padded with zeros: [S, .., STRIP].
struct PromptSpace {
  int head_width, width, strips;      // S
  uint8_t* query;                     // [S, width / 4, STRIP, 4], codes + a zero of the products' own
  float *query_scale, *most, *total;  // [S, STRIP]: scales times log2(e)
  float* mixed;                       // [S, head_width, STRIP]
  int *first, *last;                  // [S, STRIP]: positions that queries see
  float* scores;                      // [PART, STRIP]; then shares [PART / 4, STRIP, 4]
  size_t bytes;

  INLINE PromptSpace(uint8_t* space, int queries, int head_dim, int codes)
      : head_width(padded(head_dim)),
        width((head_dim + codes - 1) / codes * codes),
        strips((queries + STRIP - 1) / STRIP) {
    const size_t filled = strips * STRIP;
    Layout layout{space};
    layout.take(query, filled * width);
    for (float** of_query : {&query_scale, &most, &total}) layout.take(*of_query, filled);
    layout.take(mixed, filled * head_width);
    for (int** of_query : {&first, &last}) layout.take(*of_query, filled);
    layout.take(scores, PART * STRIP);
    bytes = layout.bytes;
  }
};

// Sums and differences of lanes STEP apart.
template <int STEP>
INLINE __m512 butterfly(__m512 x) {
  const __m512 other = STEP == 1   ? _mm512_permute_ps(x, 0xb1)
                       : STEP == 2 ? _mm512_permute_ps(x, 0x4e)
                       : STEP == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                                   : _mm512_shuffle_f32x4(x, x, 0x4e);
  constexpr __mmask16 SECOND = STEP == 1 ? 0xaaaa : STEP == 2 ? 0xcccc : STEP == 4 ? 0xf0f0 : 0xff00;
  const __m512 signs = _mm512_mask_blend_ps(SECOND, _mm512_set1_ps(1.f), _mm512_set1_ps(-1.f));
  return _mm512_fmadd_ps(x, signs, other);
}

// Vectors that lie `first`, 2 * first .. apart, as far as whole heads are made of them.
template <int MOST>
INLINE void turn_vectors(__m512 (&x)[MOST], int vectors, int order) {
  for (int step = 1; step < order; step *= 2)
    for (int i = 0; i < vectors; i++)
      if (!(i & step)) {
        const __m512 a = x[i], b = x[i + step];
        x[i] = _mm512_add_ps(a, b);
        x[i + step] = _mm512_sub_ps(a, b);
      }
}

// The greatest power of 2 that divides a head.
INLINE int order_of(int numbers) { return numbers & -numbers; }

// x [vectors] times Hadamard's matrix of the greatest order, whose numbers are 1 and -1.
template <int MOST>
INLINE void turn(__m512 (&x)[MOST], int vectors) {
  for (int i = 0; i < vectors; i++) x[i] = butterfly<8>(butterfly<4>(butterfly<2>(butterfly<1>(x[i]))));
  turn_vectors(x, vectors, order_of(vectors));
}

// Codes of turned numbers; returns the scale. A NaN is in the scale.
template <int MOST>
INLINE float round(const __m512 (&x)[MOST], int vectors, __m512i (&codes)[MOST]) {
  // Magnitudes compare as integers in the order of the floats, and NaN is above them all.
  __m512i most_of = _mm512_setzero_si512();
  for (int i = 0; i < vectors; i++) most_of = _mm512_max_epi32(most_of, _mm512_castps_si512(_mm512_abs_ps(x[i])));
  const int32_t bits = _mm512_reduce_max_epi32(most_of);
  float most;
  std::memcpy(&most, &bits, sizeof most);
  const __m512 inverse = _mm512_set1_ps(most >= SMALLEST ? 127.f / most : 0.f);
  for (int i = 0; i < vectors; i++)  // NaN comes as the least integer, two of which overflow
    codes[i] = _mm512_max_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(x[i], inverse)), _mm512_set1_epi32(-127));
  return most < SMALLEST ? 0.f : most / 127.f;
}

// The address of position t of a part; null if no query attends to it.
template <class T>
INLINE const T* line_at(const Part& part, const void* const lines[2], int t) {
  const int at = t - part.begin, second = at - part.counts[0];
  if (at < 0 || second >= part.counts[1]) return nullptr;
  return second < 0 ? static_cast<const T*>(lines[0]) + at * pitch<T>(part.head_dim)
                    : static_cast<const T*>(lines[1]) + second * pitch<T>(part.head_dim);
}

template <class T>
INLINE float scale_of(const T*, int) {
  return 1;
}
INLINE float scale_of(const int8_t* line, int head_dim) {
  float scale;
  std::memcpy(&scale, line + head_dim, sizeof scale);
  return scale;
}

// A line of a cache, turned, as codes; returns their scale. No line: zeros.
template <class T, int MOST>
INLINE float take_line(const T* line, int head_dim, int vectors, __m512i (&codes)[MOST]) {
  if (line == nullptr) {
    for (int i = 0; i < vectors; i++) codes[i] = _mm512_setzero_si512();
    return 0;
  }
  __m512 x[MOST];
  for (int i = 0; i < vectors; i++) x[i] = load(line + i * LANES, kvcast::first(head_dim - i * LANES));
  turn(x, vectors);
  return round(x, vectors, codes) * scale_of(line, head_dim);
}

// log2 of positive values to 1e-6; NaN stays.
INLINE __m512 log2(__m512 x) {
  const __m512 unit = _mm512_set1_ps(1.f), mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  // The exponent that belongs to that mantissa.
  const __m512 exponent = _mm512_getexp_ps(_mm512_div_ps(x, mantissa));
  const __m512 s = _mm512_div_ps(_mm512_sub_ps(mantissa, unit), _mm512_add_ps(mantissa, unit));
  const __m512 square = _mm512_mul_ps(s, s);
  __m512 sum = _mm512_set1_ps(1 / 7.f);
  for (float term : {1 / 5.f, 1 / 3.f, 1.f}) sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(term));
  return _mm512_fmadd_ps(_mm512_mul_ps(sum, s), _mm512_set1_ps(2 * LOG2_E), exponent);
}

// Attention of prompts with some products.
template <class Products>
struct PromptKernel {
  static constexpr int STEP = Products::POSITIONS;  // positions that are multiplied at once

  static PromptSpace space_of(const PromptTile& tile) {
    return PromptSpace(tile.space, tile.queries, tile.head_dim, Products::CODES);
  }

  static size_t part_bytes(int head_dim) { return PromptPart(nullptr, head_dim, Products::CODES).bytes; }
  static size_t tile_bytes(int queries, int head_dim) {
    return PromptSpace(nullptr, queries, head_dim, Products::CODES).bytes;
  }

  static void pack(const Part& part, uint8_t* packed) {
    constexpr int STEPS = std::max(STEP, LANES);
    const PromptPart to(packed, part.head_dim, Products::CODES);
    const int begin = part.begin / STEPS * STEPS, last = part.begin + part.counts[0] + part.counts[1];
    const int end = (last + STEPS - 1) / STEPS * STEPS;
    with_shape(part.key_number, to.head_width, [&](auto number, auto vectors) {
      pack_keys<decltype(number), decltype(vectors)::value>(part, to, begin, end);
    });
    with_shape(part.value_number, to.head_width, [&](auto number, auto vectors) {
      pack_values<decltype(number), decltype(vectors)::value>(part, to, begin, end);
    });
    for (int t = begin; t < end; t += LANES) {
      // NaN stays in the logarithm alone: a share of 0 times an inverse is 0.
      const __m512 scale = _mm512_max_ps(_mm512_set1_ps(LEAST_SCALE), _mm512_load_ps(to.value_log + t));
      const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.f), scale);
      _mm512_store_ps(to.value_log + t, kvcast::log2(scale));
      _mm512_store_ps(to.value_inverse + t, _mm512_min_ps(inverse, _mm512_set1_ps(1 / LEAST_SCALE)));
    }
  }

  static void begin(const PromptTile& tile) {
    const PromptSpace space = space_of(tile);
    const size_t filled = space.strips * STRIP;
    std::memset(space.query, Products::ZERO, filled * space.width);
    std::fill_n(space.query_scale, filled, 0.f);
    std::fill_n(space.most, filled, NOT_SEEN);
    std::fill_n(space.total, filled, 0.f);
    std::fill_n(space.mixed, filled * space.head_width, 0.f);
  }

  static void take_query(const PromptTile& tile, int query, const float* numbers, float sink) {
    const PromptSpace space = space_of(tile);
    // As if a position had been seen whose values are zeros.
    if (sink > NOT_SEEN) space.most[query] = sink * LOG2_E, space.total[query] = 1;
    const int vectors = space.head_width / LANES;
    __m512i codes[WIDEST_PROMPT_HEAD / LANES];
    const float scale = take_line(numbers, space.head_width, vectors, codes);
    space.query_scale[query] = scale * LOG2_E / static_cast<float>(LANES * order_of(vectors));
    uint8_t* to = space.query + static_cast<size_t>(query / STRIP) * STRIP * space.width + query % STRIP * FOUR;
    for (int i = 0; i < vectors; i++) {
      const __m128i bytes = _mm_xor_si128(_mm512_cvtepi32_epi8(codes[i]), _mm_set1_epi8(static_cast<char>(Products::ZERO)));
      alignas(16) int32_t fours[LANES / FOUR];
      _mm_store_si128(reinterpret_cast<__m128i*>(fours), bytes);
      for (int k = 0; k < LANES / FOUR; k++)
        std::memcpy(to + static_cast<size_t>(i * LANES / FOUR + k) * STRIP * FOUR, fours + k, FOUR);
    }
  }

  static void attend(const PromptTile& tile, const uint8_t* packed, const int* first, const int* last) {
    const PromptSpace space = space_of(tile);
    const PromptPart part(packed, tile.head_dim, Products::CODES);
    for (int m = 0; m < space.strips * STRIP; m++) {  // padding queries see as much as the last query
      space.first[m] = first[std::min(m, tile.queries - 1)];
      space.last[m] = last[std::min(m, tile.queries - 1)];
    }
    Products::prepare();
    for (int strip = 0; strip < space.strips; strip++) attend_strip(part, Strip(tile, space, strip));
    Products::release();
  }

  // Of queries first .. first + LANES.
  static void results(const PromptTile& tile, int first, float* out) {
    const PromptSpace space = space_of(tile);
    const int width = space.head_width, order = order_of(width);
    const __m512 total = _mm512_load_ps(space.total + first);
    const __mmask16 sees_any = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 factor = _mm512_div_ps(_mm512_set1_ps(1.f / static_cast<float>(order)), total);
    const float* mixed = space.mixed + static_cast<size_t>(first / STRIP) * STRIP * width + first % STRIP;
    __m512 x[WIDEST_PROMPT_HEAD];
    for (int d = 0; d < width; d++)
      x[d] = _mm512_maskz_mul_ps(sees_any, _mm512_load_ps(mixed + d * STRIP), factor);
    turn_vectors(x, width, order);
    for (int d = 0; d < width; d += LANES) {
      __m512 rows[LANES];
      for (int i = 0; i < LANES; i++) rows[i] = x[d + i];
      transpose(rows);
      for (int m = 0; m < LANES; m++) _mm512_storeu_ps(out + m * width + d, rows[m]);
    }
  }

 private:
  // A strip of queries with the positions of the part that each sees.
  struct Strip {
    const uint8_t* query;
    const float* query_scale;
    float *most, *total, *mixed, *scores;
    float softcap;
    const int *first, *last;
    int begin, end;          // positions that any query sees, in whole steps
    int all_begin, all_end;  // positions that all see

    INLINE Strip(const PromptTile& tile, const PromptSpace& space, int index)
        : query(space.query + static_cast<size_t>(index) * STRIP * space.width),
          query_scale(space.query_scale + index * STRIP),
          most(space.most + index * STRIP),
          total(space.total + index * STRIP),
          mixed(space.mixed + static_cast<size_t>(index) * STRIP * space.head_width),
          scores(space.scores),
          softcap(tile.softcap),
          first(space.first + index * STRIP),
          last(space.last + index * STRIP),
          begin(PART),
          end(0),
          all_begin(0),
          all_end(PART) {
      for (int m = 0; m < STRIP; m++) {
        all_begin = std::max(all_begin, first[m]);
        all_end = std::min(all_end, last[m]);
        if (first[m] < last[m]) begin = std::min(begin, first[m]), end = std::max(end, last[m]);
      }
      begin = begin / STEP * STEP;
      end = (end + STEP - 1) / STEP * STEP;
    }

    INLINE __mmask16 sees(int t, int z) const {
      const __m512i at = _mm512_set1_epi32(t);
      return _mm512_cmple_epi32_mask(_mm512_load_si512(first + z * LANES), at) &
             _mm512_cmpgt_epi32_mask(_mm512_load_si512(last + z * LANES), at);
    }
  };

  // Calls with(0 of the cache's element type, vectors of a head; 0: any).
  template <class With>
  static INLINE void with_shape(Number number, int head_width, const With& with) {
    const auto with_type = [&](auto zero) {
      if (head_width == 64) return with(zero, std::integral_constant<int, 4>());
      if (head_width == 128) return with(zero, std::integral_constant<int, 8>());
      with(zero, std::integral_constant<int, 0>());
    };
    if (number == Number::INT8) return with_type(int8_t{});
    if (number == Number::F16) return with_type(uint16_t{});
    with_type(float{});
  }

  template <class T, int VECTORS>
  static void pack_keys(const Part& part, const PromptPart& to, int begin, int end) {
    constexpr int MOST = VECTORS ? VECTORS : WIDEST_PROMPT_HEAD / LANES;
    const int vectors = VECTORS ? VECTORS : to.head_width / LANES;
    for (int t = begin; t < end; t++) {
      __m512i codes[MOST], sum = _mm512_setzero_si512();
      to.key_scale[t] = take_line(line_at<T>(part, part.keys, t), part.head_dim, vectors, codes);
      int8_t* key = to.key + static_cast<size_t>(t) * to.width;
      for (int i = 0; i < vectors; i++) {
        sum = _mm512_add_epi32(sum, codes[i]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(key + i * LANES), _mm512_cvtepi32_epi8(codes[i]));
      }
      if (to.width > vectors * LANES) std::memset(key + vectors * LANES, 0, to.width - vectors * LANES);
      if (Products::ZERO) to.key_offset[t] = -Products::ZERO * _mm512_reduce_add_epi32(sum);
    }
  }

  // Scales are stored where their logarithms will be.
  template <class T, int VECTORS>
  static void pack_values(const Part& part, const PromptPart& to, int begin, int end) {
    constexpr int MOST = VECTORS ? VECTORS : WIDEST_PROMPT_HEAD / LANES;
    const int vectors = VECTORS ? VECTORS : to.head_width / LANES;
    const __m512i low = _mm512_set1_epi32(0xff);
    alignas(64) int32_t room[Products::ROOM * MOST + 1][LANES];
    for (int t = begin; t < end; t += FOUR) {
      __m512i fours[MOST];
      for (int k = 0; k < FOUR; k++) {
        __m512i codes[MOST];
        to.value_log[t + k] = take_line(line_at<T>(part, part.values, t + k), part.head_dim, vectors, codes);
        for (int i = 0; i < vectors; i++) {
          const __m512i byte = _mm512_slli_epi32(_mm512_and_si512(codes[i], low), 8 * k);
          fours[i] = k == 0 ? byte : _mm512_or_si512(fours[i], byte);
        }
      }
      for (int i = 0; i < vectors; i++) Products::store_values(to, t, i * LANES, fours[i], room + Products::ROOM * i);
    }
  }

  static void attend_strip(const PromptPart& part, const Strip& strip) {
    if (strip.begin >= strip.end) return;
    __m512 peak[2], kept[2], factor[2], total[2];
    score(part, strip, peak);
    share(part, strip, peak, total);
    for (int z = 0; z < 2; z++) {
      const __m512 before = _mm512_load_ps(strip.most + z * LANES), next = _mm512_max_ps(before, peak[z]);
      kept[z] = exp2(_mm512_sub_ps(before, next));
      factor[z] = exp2(_mm512_sub_ps(peak[z], next));
      _mm512_store_ps(strip.most + z * LANES, next);
      const __m512 old = _mm512_mul_ps(_mm512_load_ps(strip.total + z * LANES), kept[z]);
      _mm512_store_ps(strip.total + z * LANES, _mm512_fmadd_ps(total[z], factor[z], old));
    }
    alignas(64) int32_t sums[Products::NUMBERS][STRIP];
    for (int d = 0; d < part.head_width; d += Products::NUMBERS) {
      Products::multiply_values(part, strip.scores, strip.begin, strip.end, d, sums);
      for (int i = 0; i < Products::NUMBERS; i++)
        for (int z = 0; z < 2; z++) {
          float* to = strip.mixed + (d + i) * STRIP + z * LANES;
          const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(&sums[i][z * LANES]));
          _mm512_store_ps(to, _mm512_fmadd_ps(sum, factor[z], _mm512_mul_ps(_mm512_load_ps(to), kept[z])));
        }
    }
  }

  // Logarithms of what positions count for the strip's queries, with their values' scales, and of each query's greatest.
  static INLINE void score(const PromptPart& part, const Strip& strip, __m512 (&peak)[2]) {
    __m512 most[2] = {_mm512_set1_ps(NOT_SEEN), _mm512_set1_ps(NOT_SEEN)};
    for (int t = strip.begin; t < strip.end; t += STEP) {
      Products::multiply_keys(part, strip.query, t, strip.scores + t * STRIP);
      const bool is_seen_by_all = t >= strip.all_begin && t + STEP <= strip.all_end;
      if (is_seen_by_all && strip.softcap == 0)
        score_step<true>(part, strip, t, most);
      else
        score_step<false>(part, strip, t, most);
    }
    for (int z = 0; z < 2; z++) peak[z] = _mm512_sub_ps(most[z], _mm512_set1_ps(LOG2_MOST_SHARE));
  }

  // IS_SIMPLE: all queries see all of the step, and there is no softcap.
  template <bool IS_SIMPLE>
  static INLINE void score_step(const PromptPart& part, const Strip& strip, int begin, __m512 (&most)[2]) {
    for (int t = begin; t < begin + STEP; t++) {
      const __m512 scale = _mm512_set1_ps(part.key_scale[t]), value_log = _mm512_set1_ps(part.value_log[t]);
      for (int z = 0; z < 2; z++) {
        float* at = strip.scores + t * STRIP + z * LANES;
        const __m512 query_scale = _mm512_load_ps(strip.query_scale + z * LANES);
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(at)), scale);
        __m512 x = _mm512_fmadd_ps(product, query_scale, value_log);
        if (!IS_SIMPLE) {
          if (strip.softcap != 0) {
            const __m512 cap = _mm512_set1_ps(strip.softcap * LOG2_E);
            x = _mm512_fmadd_ps(cap, tanh(_mm512_div_ps(_mm512_mul_ps(product, query_scale), cap)), value_log);
          }
          x = _mm512_mask_blend_ps(strip.sees(t, z), _mm512_set1_ps(-INFINITY), x);
        }
        most[z] = _mm512_max_ps(x, most[z]);
        _mm512_store_ps(at, x);
      }
    }
  }

  // They become shares, and `total` what the shares of all positions would be without the values' scales.
  static INLINE void share(const PromptPart& part, const Strip& strip, const __m512 (&peak)[2], __m512 (&total)[2]) {
    total[0] = total[1] = _mm512_setzero_ps();
    for (int t = strip.begin; t < strip.end; t += FOUR)
      for (int z = 0; z < 2; z++) {
        const float* scores = strip.scores + t * STRIP + z * LANES;
        __m512i codes[FOUR];
        for (int k = 0; k < FOUR; k++) {
          const __m512 x = exp2_roughly(_mm512_sub_ps(_mm512_load_ps(scores + k * STRIP), peak[z]));
          total[z] = _mm512_fmadd_ps(x, _mm512_set1_ps(part.value_inverse[t + k]), total[z]);
          codes[k] = _mm512_cvttps_epi32(_mm512_add_ps(x, _mm512_set1_ps(DITHER[(t + k) % LANES])));
        }
        const __m512i low = _mm512_or_si512(codes[0], _mm512_slli_epi32(codes[1], 8));
        const __m512i high = _mm512_or_si512(codes[2], _mm512_slli_epi32(codes[3], 8));
        _mm512_store_si512(strip.scores + t / FOUR * STRIP + z * LANES,
                           _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
  }
};

template <class Products>
constexpr PromptAttention PROMPT_ATTENTION = {
    WIDEST_PROMPT_HEAD,           PromptKernel<Products>::part_bytes, PromptKernel<Products>::tile_bytes,
    PromptKernel<Products>::pack, PromptKernel<Products>::begin,      PromptKernel<Products>::take_query,
    PromptKernel<Products>::attend, PromptKernel<Products>::results};

AVX512_END

}  // namespace kvcast
#endif
