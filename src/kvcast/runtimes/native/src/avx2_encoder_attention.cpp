// Attention of an encoder with AVX2, in fp32: tiles of queries over chunks of positions.
#include "avx2.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

constexpr int CHUNK = 256;  // positions whose scores are held at once: 6 x 256 lie in the first cache

#include "float_head.hpp"

void pack_head(const EncoderHead& of, int first) {
  const FloatHead head(of);
  const __m256 factor = _mm256_set1_ps(of.scale * LOG2_E);
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < of.positions ? of.head_dim : 0;
    const size_t from = t < of.positions ? t * of.stride : 0;
    for (int d = 0; d < head.width; d += 8) {
      _mm256_storeu_ps(head.query + static_cast<size_t>(t) * head.width + d, _mm256_mul_ps(load(of.query + from + d, there - d), factor));
      _mm256_storeu_ps(head.value + (static_cast<size_t>(d / STRIP) * head.filled + t) * STRIP + d % STRIP,
                       load(of.value + from + d, there - d));
      float column[8];
      _mm256_storeu_ps(column, load(of.key + from + d, there - d));
      float* keys = head.key + static_cast<size_t>(t / STRIP) * head.width * STRIP + t % STRIP;
      for (int i = 0; i < 8; i++) keys[(d + i) * STRIP] = column[i];
    }
  }
}

template <int ROWS>
INLINE void zero(__m256 sums[ROWS][PAIR]) {
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = _mm256_setzero_ps();
}

// Scores of CHUNK positions at most; past the last position -inf.
template <int ROWS>
INLINE void score(const FloatHead& head, const float* query, int begin, int end, float scores[ROWS][CHUNK]) {
  for (int t = begin; t < end; t += STRIP) {
    __m256 sums[ROWS][PAIR];
    zero<ROWS>(sums);
    multiply_strips<ROWS, 1>(head.key + static_cast<size_t>(t) * head.width, 0, head.width, query, head.width, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < PAIR; z++) _mm256_storeu_ps(&scores[m][t - begin + z * 8], sums[m][z]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int t = std::max(begin, head.positions); t < end; t++) scores[m][t - begin] = -INFINITY;
}

// The softmax so far of one query.
struct Running {
  float most = -INFINITY, total = 0;

  // Scores become shares; returns the factor on what was summed before.
  INLINE float take(float* scores, int count) {
    __m256 x = load(scores);
    for (int i = 8; i < count; i += 8) x = _mm256_max_ps(x, load(scores + i));
    const float next = std::max(most, greatest(x)), kept = std::exp2(most - next);
    const __m256 peak = _mm256_set1_ps(next);
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < count; i += 8) {
      const __m256 share = exp2(_mm256_sub_ps(load(scores + i), peak));
      sum = _mm256_add_ps(sum, share);
      _mm256_storeu_ps(scores + i, share);
    }
    total = total * kept + with_avx2::total(sum);
    most = next;
    return kept;
  }
};

template <int ROWS>
void attend_rows(const EncoderHead& of, int first) {
  const FloatHead head(of);
  const int head_dim = of.head_dim;
  const size_t stride = of.out_stride;
  float* out = of.out + first * stride;
  alignas(64) float scores[ROWS][CHUNK];
  Running softmax[ROWS];
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    score<ROWS>(head, head.query + static_cast<size_t>(first) * head.width, begin, end, scores);
    float kept[ROWS], factor[ROWS];
    for (int m = 0; m < ROWS; m++) {
      kept[m] = softmax[m].take(scores[m], end - begin);
      factor[m] = end == head.filled ? 1 / softmax[m].total : 1.f;
    }
    for (int d = 0; d < head_dim; d += STRIP) {
      float* to = out + d;
      __m256 sums[ROWS][PAIR];
      zero<ROWS>(sums);
      if (begin)
        for (int m = 0; m < ROWS; m++)
          for (int z = 0; z < PAIR; z++)
            sums[m][z] = _mm256_mul_ps(load(to + m * stride + z * 8, head_dim - d - z * 8), _mm256_set1_ps(kept[m]));
      const float* values = head.value + (static_cast<size_t>(d / STRIP) * head.filled + begin) * STRIP;
      multiply_strips<ROWS, 1>(values, 0, end - begin, scores[0], CHUNK, sums);
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < PAIR; z++)
          store(to + m * stride + z * 8, head_dim - d - z * 8, _mm256_mul_ps(sums[m][z], _mm256_set1_ps(factor[m])));
    }
  }
}

void attend(const EncoderHead& of, int first, int last) {
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6>(of, s);
  for (; s < last; s++) attend_rows<1>(of, s);
}

}  // namespace

AVX2_END

}  // namespace with_avx2

const EncoderAttention avx2_encoder_attention = {with_avx2::head_bytes, with_avx2::pack_head, with_avx2::attend};

}  // namespace kvcast
#endif
