// Attention of an encoder with AVX-512: tiles of queries over chunks of positions. Queries and keys are int8
// with a scale a position, shares and values bf16, or fp32 where the processor has no BF16.
//
// A vector that is subtracted from all keys adds the same to all of a query's scores, so the softmax does not
// change. Without the part that all keys share int8 is precise enough (SageAttention, arXiv:2410.02367).
#include "avx512/head.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int AHEAD = 8;        // positions that are fetched before they are packed
constexpr int CENTER_OF = 32;   // positions, spread over all, whose mean key is the centre

template <class Value>
size_t head_bytes(int positions, int head_dim) {
  return Int8Head<Value>(nullptr, positions, head_dim).bytes();
}

// x - center as codes [width], 0 past head_dim. Returns the scale and the sum of the codes.
struct Codes {
  float scale;
  int32_t sum;
};

INLINE Codes round(const float* x, const float* center, int head_dim, int width, int8_t* codes) {
  const auto numbers = [&](int d) {
    const __mmask16 there = first(head_dim - d);
    const __m512 v = _mm512_maskz_loadu_ps(there, x + d);
    return center ? _mm512_maskz_sub_ps(there, v, _mm512_load_ps(center + d)) : v;
  };
  // Magnitudes compare as integers in the order of the floats, and NaN is above them all, so it is kept.
  __m512i most_of = _mm512_setzero_si512();
  for (int d = 0; d < head_dim; d += 16)
    most_of = _mm512_max_epi32(most_of, _mm512_castps_si512(_mm512_abs_ps(numbers(d))));
  const int32_t bits = _mm512_reduce_max_epi32(most_of);
  float most;
  std::memcpy(&most, &bits, sizeof most);
  const __m512 inverse = _mm512_set1_ps(most >= SMALLEST ? 127.f / most : 0.f);
  __m512i sum = _mm512_setzero_si512();
  for (int d = 0; d < width; d += 16) {
    const __m512i nearest = _mm512_cvtps_epi32(_mm512_mul_ps(numbers(d), inverse));
    const __m512i code = _mm512_max_epi32(nearest, _mm512_set1_epi32(-127));  // NaN came as the least integer
    sum = _mm512_add_epi32(sum, code);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + d), _mm512_cvtepi32_epi8(code));
  }
  return {most < SMALLEST ? 0.f : most / 127.f, _mm512_reduce_add_epi32(sum)};
}

// The mean of some keys [width]: of the same positions for every part.
void find_center(const EncoderHead& of, int width, float* center) {
  const int count = std::min(of.positions, CENTER_OF);
  for (int d = 0; d < width; d += 16) {
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i++) {
      const size_t t = static_cast<size_t>(i) * of.positions / count;
      sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(first(of.head_dim - d), of.key + t * of.stride + d));
    }
    _mm512_store_ps(center + d, _mm512_mul_ps(sum, _mm512_set1_ps(1.f / count)));
  }
}

// 16 values of a position; past the last position zeros.
INLINE __m512 value_at(const EncoderHead& of, int t, int d) {
  if (t >= of.positions) return _mm512_setzero_ps();
  return _mm512_maskz_loadu_ps(first(of.head_dim - d), of.value + t * of.stride + d);
}

// Values of position t, and of the next one as well where two lie together.
void pack_values(const EncoderHead& of, int t, int width, float* to) {
  for (int d = 0; d < width; d += 16) _mm512_storeu_ps(to + d, value_at(of, t, d));
}

void pack_values(const EncoderHead& of, int t, int width, uint16_t* to) {
  const auto halves = [&](int t, int d) { return _mm512_cvtepu16_epi32(narrowed(value_at(of, t, d))); };
  for (int d = 0; d < width; d += 16)
    _mm512_storeu_si512(to + 2 * d, _mm512_or_si512(halves(t, d), _mm512_slli_epi32(halves(t + 1, d), 16)));
}

template <class Value>
void pack_head(const EncoderHead& of, int first) {
  const Int8Head<Value> head(of);
  const int width = head.width, positions = of.positions, head_dim = of.head_dim;
  const size_t stride = of.stride;
  alignas(64) float center[WIDEST_HEAD];
  alignas(64) int8_t codes[WIDEST_HEAD];
  find_center(of, width, center);
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < positions ? head_dim : 0;
    const size_t from = t < positions ? t * stride : 0;
    if (t + AHEAD < positions)  // lines are too far apart to be foreseen
      for (const float* x : {of.query, of.key, of.value})
        for (int d = 0; d < head_dim; d += 16)
          _mm_prefetch(reinterpret_cast<const char*>(x + (t + AHEAD) * stride + d), _MM_HINT_T0);
    const Codes of_query = round(of.query + from, nullptr, there, width, head.query + static_cast<size_t>(t) * width);
    // Not 0 for a query of zeros: -inf, the score past the last position, would become NaN. NaN itself stays.
    head.query_scale[t] = std::max(of_query.scale * of.scale * LOG2_E, SMALLEST);
    head.offset[t] = -128 * of_query.sum;
    head.key_scale[t] = round(of.key + from, center, there, width, codes).scale;
    uint8_t* keys = head.key + static_cast<size_t>(first) * width + (t - first) * 4;
    for (int d = 0; d < width; d += 4) {
      uint32_t four;
      std::memcpy(&four, codes + d, 4);
      four ^= 0x80808080u;
      std::memcpy(keys + static_cast<size_t>(d) * BLOCK, &four, 4);
    }
    if (t % TOGETHER<Value> == 0)
      pack_values(of, t, width, head.value + static_cast<size_t>(t) * width);
  }
}

// GCC 12 moves each sum to another register and back around the intrinsic, which halves the speed.
INLINE void dot(__m512i& sum, __m512i keys, __m512i query) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(keys), "v"(query));
}

// Scores, not yet times the queries' scales, of CHUNK positions at most; -inf from `positions` on. `most` [ROWS]
// is a vector that is nowhere less.
template <int ROWS, class Value>
INLINE void score(const Int8Head<Value>& head, int first, int begin, int end, float scores[ROWS][CHUNK],
                  __m512 most[ROWS]) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY);
  const int8_t* query = head.query + static_cast<size_t>(first) * head.width;
  for (int m = 0; m < ROWS; m++) most[m] = nothing;
  for (int t = begin; t < end; t += BLOCK) {
    __m512i sums[ROWS][VECTORS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_set1_epi32(head.offset[first + m]);
    const uint8_t* key = head.key + static_cast<size_t>(t) * head.width;
    for (int k = 0; k < head.width; k += 4, key += 4 * BLOCK) {
      __m512i x[VECTORS];
      for (int z = 0; z < VECTORS; z++) x[z] = _mm512_loadu_si512(key + z * 64);
      for (int m = 0; m < ROWS; m++) {
        int32_t four;
        std::memcpy(&four, query + m * head.width + k, 4);
        const __m512i y = _mm512_set1_epi32(four);
        for (int z = 0; z < VECTORS; z++) dot(sums[m][z], x[z], y);
      }
    }
    for (int z = 0; z < VECTORS; z++) {
      const __m512 scale = _mm512_loadu_ps(head.key_scale + t + z * 16);
      const __mmask16 there = kvcast::first(head.positions - t - z * 16);
      for (int m = 0; m < ROWS; m++) {
        const __m512 x = _mm512_mask_mul_ps(nothing, there, _mm512_cvtepi32_ps(sums[m][z]), scale);
        most[m] = _mm512_max_ps(most[m], x);
        _mm512_store_ps(&scores[m][t - begin + z * 16], x);
      }
    }
  }
}

// GCC 12 reads values anew for each product around the intrinsics.
INLINE void add_products(__m512& sum, __m512 values, __m512 shares, float) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(values), "v"(shares));
}
INLINE void add_products(__m512& sum, __m512 values, __m512 shares, uint16_t) {  // of bf16, two at a time
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(values), "v"(shares));
}

// sums += shares [ROWS, CHUNK] x values as a head has them, BLOCK columns of rows that lie `step` numbers apart.
template <int ROWS, class Value>
INLINE void mix(const Value* value, size_t step, int count, const Value* shares, __m512 sums[ROWS][VECTORS]) {
  for (int t = 0; t < count; t += TOGETHER<Value>, value += step) {
    __m512 x[VECTORS];
    for (int z = 0; z < VECTORS; z++) x[z] = _mm512_loadu_ps(value + z * 16 * TOGETHER<Value>);
    for (int m = 0; m < ROWS; m++) {
      int32_t bits;
      std::memcpy(&bits, shares + m * CHUNK + t, 4);
      const __m512 y = _mm512_castsi512_ps(_mm512_set1_epi32(bits));
      for (int z = 0; z < VECTORS; z++) add_products(sums[m][z], x[z], y, Value());
    }
  }
}

// One pass, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).
template <int ROWS, class Value>
void attend_rows(const EncoderHead& of, int first) {
  const Int8Head<Value> head(of);
  const int head_dim = of.head_dim;
  const size_t stride = of.out_stride;
  float* out = of.out + first * stride;
  alignas(64) float scores[ROWS][CHUNK];
  alignas(64) Value shares[ROWS][CHUNK];
  alignas(64) __m512 most[ROWS];
  float peak[ROWS], total[ROWS], kept[ROWS];
  for (int m = 0; m < ROWS; m++) {
    peak[m] = -INFINITY;
    total[m] = 0;
  }
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    score<ROWS>(head, first, begin, end, scores, most);
    for (int m = 0; m < ROWS; m++) {
      const float scale = head.query_scale[first + m];
      const float next = std::max(peak[m], _mm512_reduce_max_ps(most[m]) * scale);
      kept[m] = std::exp2(peak[m] - next);
      peak[m] = next;
      total[m] = total[m] * kept[m] + share(scores[m], end - begin, scale, next, shares[m]);
    }
    for (int d = 0; d < head_dim; d += BLOCK) {
      __mmask16 there[VECTORS];
      for (int z = 0; z < VECTORS; z++) there[z] = kvcast::first(head_dim - d - z * 16);
      __m512 sums[ROWS][VECTORS];
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < VECTORS; z++)
          sums[m][z] = begin ? _mm512_mul_ps(_mm512_maskz_loadu_ps(there[z], out + m * stride + d + z * 16),
                                             _mm512_set1_ps(kept[m]))
                             : _mm512_setzero_ps();
      const Value* values = head.value + static_cast<size_t>(begin) * head.width + d * TOGETHER<Value>;
      mix<ROWS>(values, TOGETHER<Value> * head.width, end - begin, shares[0], sums);
      for (int m = 0; m < ROWS; m++) {
        const __m512 factor = _mm512_set1_ps(end == head.filled ? 1 / total[m] : 1.f);
        for (int z = 0; z < VECTORS; z++)
          _mm512_mask_storeu_ps(out + m * stride + d + z * 16, there[z], _mm512_mul_ps(sums[m][z], factor));
      }
    }
  }
}

template <class Value>
void attend(const EncoderHead& of, int first, int last) {
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6, Value>(of, s);
  for (; s < last; s++) attend_rows<1, Value>(of, s);
}

}  // namespace

AVX512_END

const EncoderAttention avx512_encoder_attention = {head_bytes<float>, pack_head<float>, attend<float>};
const EncoderAttention avx512_bf16_encoder_attention = {head_bytes<uint16_t>, pack_head<uint16_t>, attend<uint16_t>};

}  // namespace kvcast
#endif
