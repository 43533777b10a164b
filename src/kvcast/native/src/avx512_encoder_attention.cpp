// Attention of an encoder with AVX-512 BF16: tiles of queries over chunks of positions.
#include "avx512.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int CHUNK = 256;  // positions whose scores are held at once: 6 x 256 lie in the first cache

// A head: bf16 queries [t, D], times scale and log2(e); keys in parts of BLOCK positions
// [D / 2, BLOCK, 2]; values [t / 2, D, 2]. D is the head's size, filled up to whole blocks with zeros,
// as are the positions: T.
struct Head {
  int positions, filled, width;  // t, T, D
  uint16_t *query, *key, *value;

  Head(const uint8_t* head, int t, int head_dim)
      : positions(t),
        filled((t + BLOCK - 1) / BLOCK * BLOCK),
        width((head_dim + BLOCK - 1) / BLOCK * BLOCK),
        query(reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(head))),
        key(query + part()),
        value(key + part()) {}

  size_t part() const { return static_cast<size_t>(filled) * width; }
};

size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(uint16_t) * Head(nullptr, positions, head_dim).part(); }

// 16 numbers of a head from x; zeros past its end.
INLINE __m256i narrowed(const float* x, int left, float factor) {
  return (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_maskz_loadu_ps(first(left), x), _mm512_set1_ps(factor)));
}

void pack_head(const float* query, const float* key, const float* value, size_t stride, int positions, int head_dim,
               float scale, int first, uint8_t* to) {
  const Head head(to, positions, head_dim);
  const int width = head.width;
  alignas(64) uint16_t k16[16], v16[16];
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < positions ? head_dim : 0;
    const size_t from = t < positions ? t * stride : 0;
    for (int d = 0; d < width; d += 16) {
      const auto store = [](uint16_t* at, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); };
      store(head.query + static_cast<size_t>(t) * width + d, narrowed(query + from + d, there - d, scale * LOG2_E));
      store(k16, narrowed(key + from + d, there - d, 1.f));
      store(v16, narrowed(value + from + d, there - d, 1.f));
      uint16_t* keys = head.key + static_cast<size_t>(first) * width + (t - first) * 2;
      uint16_t* values = head.value + static_cast<size_t>(t / 2 * 2) * width + t % 2;
      for (int i = 0; i < 16; i++) {
        keys[(d + i) / 2 * 2 * BLOCK + i % 2] = k16[i];
        values[(d + i) * 2] = v16[i];
      }
    }
  }
}

// sums += a [ROWS, k] x w [k / 2, BLOCK, 2], rows of w `step` numbers apart.
template <int ROWS>
INLINE void multiply_bf16(const uint16_t* w, size_t step, int inputs, const uint16_t* a, size_t stride,
                          __m512 sums[ROWS][VECTORS]) {
  for (int k = 0; k < inputs; k += 2, w += step) {
    __m512bh x[VECTORS];
    for (int z = 0; z < VECTORS; z++) x[z] = (__m512bh)_mm512_loadu_si512(w + z * 32);
    for (int m = 0; m < ROWS; m++) {
      int32_t two;
      std::memcpy(&two, a + m * stride + k, 4);
      const __m512bh y = (__m512bh)_mm512_set1_epi32(two);
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_dpbf16_ps(sums[m][z], x[z], y);
    }
  }
}

// Scores of CHUNK positions at most; from `last` on -inf.
template <int ROWS>
INLINE void score(const Head& head, const uint16_t* query, int begin, int end, float scores[ROWS][CHUNK]) {
  for (int t = begin; t < end; t += BLOCK) {
    __m512 sums[ROWS][VECTORS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_setzero_ps();
    multiply_bf16<ROWS>(head.key + static_cast<size_t>(t) * head.width, 2 * BLOCK, head.width, query, head.width, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) _mm512_store_ps(&scores[m][t - begin + z * 16], sums[m][z]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int t = head.positions; t < end; t++) scores[m][t - begin] = -INFINITY;
}

// The softmax so far of one query.
struct Softmax {
  float most = -INFINITY, total = 0;

  // Scores become shares; returns the factor on what was summed before.
  INLINE float take(const float* scores, int count, uint16_t* shares) {
    __m512 x = _mm512_load_ps(scores);
    for (int i = 16; i < count; i += 16) x = _mm512_max_ps(x, _mm512_load_ps(scores + i));
    const float next = std::max(most, _mm512_reduce_max_ps(x)), kept = std::exp2(most - next);
    const __m512 peak = _mm512_set1_ps(next);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i += 16) {
      const __m512 share = exp2(_mm512_sub_ps(_mm512_load_ps(scores + i), peak));
      sum = _mm512_add_ps(sum, share);
      _mm256_store_si256(reinterpret_cast<__m256i*>(shares + i), (__m256i)_mm512_cvtneps_pbh(share));
    }
    total = total * kept + _mm512_reduce_add_ps(sum);
    most = next;
    return kept;
  }
};

template <int ROWS>
void attend_rows(const Head& head, int head_dim, int first, float* out, size_t stride) {
  alignas(64) float scores[ROWS][CHUNK];
  alignas(64) uint16_t shares[ROWS][CHUNK];
  Softmax softmax[ROWS];
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    score<ROWS>(head, head.query + static_cast<size_t>(first) * head.width, begin, end, scores);
    float kept[ROWS];
    for (int m = 0; m < ROWS; m++) kept[m] = softmax[m].take(scores[m], end - begin, shares[m]);
    for (int d = 0; d < head_dim; d += BLOCK) {
      __mmask16 there[VECTORS];
      for (int z = 0; z < VECTORS; z++) {
        there[z] = kvcast::first(head_dim - d - z * 16);
      }
      __m512 sums[ROWS][VECTORS];
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < VECTORS; z++)
          sums[m][z] = begin ? _mm512_mul_ps(_mm512_maskz_loadu_ps(there[z], out + m * stride + d + z * 16),
                                             _mm512_set1_ps(kept[m]))
                             : _mm512_setzero_ps();
      multiply_bf16<ROWS>(head.value + static_cast<size_t>(begin) * head.width + d * 2, 2 * head.width, end - begin,
                          shares[0], CHUNK, sums);
      for (int m = 0; m < ROWS; m++) {
        const __m512 factor = _mm512_set1_ps(end == head.filled ? 1 / softmax[m].total : 1.f);
        for (int z = 0; z < VECTORS; z++)
          _mm512_mask_storeu_ps(out + m * stride + d + z * 16, there[z], _mm512_mul_ps(sums[m][z], factor));
      }
    }
  }
}

void attend(const uint8_t* packed, int positions, int head_dim, int first, int last, float* out, size_t stride) {
  const Head head(packed, positions, head_dim);
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6>(head, head_dim, s, out + s * stride, stride);
  for (; s < last; s++) attend_rows<1>(head, head_dim, s, out + s * stride, stride);
}

}  // namespace

AVX512_END

const EncoderAttention avx512_encoder_attention = {head_bytes, pack_head, attend};

}  // namespace kvcast
#endif
