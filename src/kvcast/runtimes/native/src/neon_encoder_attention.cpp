// Attention of an encoder with NEON, in fp32: tiles of queries over chunks of positions.
#include "neon.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {
namespace {

constexpr int CHUNK = 256;  // positions whose scores are held at once: 6 x 256 lie in the first cache

#include "float_head.hpp"

void pack_head(const EncoderHead& of, int first) {
  const FloatHead head(of);
  const float32x4_t factor = vdupq_n_f32(of.scale * LOG2_E);
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < of.positions ? of.head_dim : 0;
    const size_t from = t < of.positions ? t * of.stride : 0;
    for (int d = 0; d < head.width; d += LANES) {
      vst1q_f32(head.query + static_cast<size_t>(t) * head.width + d, vmulq_f32(load(of.query + from + d, there - d), factor));
      vst1q_f32(head.value + (static_cast<size_t>(d / STRIP) * head.filled + t) * STRIP + d % STRIP,
                load(of.value + from + d, there - d));
      float column[LANES];
      vst1q_f32(column, load(of.key + from + d, there - d));
      float* keys = head.key + static_cast<size_t>(t / STRIP) * head.width * STRIP + t % STRIP;
      for (int i = 0; i < LANES; i++) keys[(d + i) * STRIP] = column[i];
    }
  }
}

// Scores of CHUNK positions at most; past the last position -inf.
template <int ROWS>
INLINE void score(const FloatHead& head, const float* query, int begin, int end, float scores[ROWS][CHUNK]) {
  for (int t = begin; t < end; t += STRIP) {
    float32x4_t sums[ROWS][QUADS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) sums[m][z] = vdupq_n_f32(0.f);
    multiply_strip<ROWS>(head.key + static_cast<size_t>(t) * head.width, head.width, query, head.width, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) vst1q_f32(&scores[m][t - begin + z * LANES], sums[m][z]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int t = std::max(begin, head.positions); t < end; t++) scores[m][t - begin] = -INFINITY;
}

// The softmax so far of one query.
struct Running {
  float most = -INFINITY, total = 0;

  // Scores become shares; returns the factor on what was summed before.
  INLINE float take(float* scores, int count) {
    float32x4_t x = load(scores);
    for (int i = LANES; i < count; i += LANES) x = vmaxq_f32(x, load(scores + i));
    const float next = std::max(most, greatest(x)), kept = std::exp2(most - next);
    const float32x4_t peak = vdupq_n_f32(next);
    float32x4_t sum = vdupq_n_f32(0.f);
    for (int i = 0; i < count; i += LANES) {
      const float32x4_t share = exp2(vsubq_f32(load(scores + i), peak));
      sum = vaddq_f32(sum, share);
      vst1q_f32(scores + i, share);
    }
    total = total * kept + with_neon::total(sum);
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
      float32x4_t sums[ROWS][QUADS];
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < QUADS; z++)
          sums[m][z] = begin ? vmulq_n_f32(load(to + m * stride + z * LANES, head_dim - d - z * LANES), kept[m])
                             : vdupq_n_f32(0.f);
      const float* values = head.value + (static_cast<size_t>(d / STRIP) * head.filled + begin) * STRIP;
      multiply_strip<ROWS>(values, end - begin, scores[0], CHUNK, sums);
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < QUADS; z++)
          store(to + m * stride + z * LANES, head_dim - d - z * LANES, vmulq_n_f32(sums[m][z], factor[m]));
    }
  }
}

void attend(const EncoderHead& of, int first, int last) {
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6>(of, s);
  for (; s < last; s++) attend_rows<1>(of, s);
}

}  // namespace
}  // namespace with_neon

const EncoderAttention neon_encoder_attention = {with_neon::head_bytes, with_neon::pack_head, with_neon::attend};

}  // namespace kvcast
#endif
