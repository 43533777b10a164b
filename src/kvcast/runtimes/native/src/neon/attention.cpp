// Attention over a part of positions with NEON, in fp32 throughout.
#include "neon/vec.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {
namespace {

constexpr int AT_ONCE = 6;  // queries that share values: 6 x 4 sums and 4 values fit into 32 registers

void rotate(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; i += LANES) {
    const int there = half - i;
    const float32x4_t a = load(x + i, there), b = load(x + half + i, there);
    const float32x4_t c = load(cosines + i, there), s = load(sines + i, there);
    with_neon::store(out + i, there, vfmsq_f32(vmulq_f32(a, c), b, s));
    with_neon::store(out + half + i, there, vfmaq_f32(vmulq_f32(a, s), b, c));
  }
}

void store_codes(const float* x, int count, int8_t* to) {
  float32x4_t most_of = vdupq_n_f32(0.f);
  for (int i = 0; i < count; i += LANES) most_of = vmaxq_f32(most_of, vabsq_f32(load(x + i, count - i)));  // NaN stays
  const float most = greatest(most_of);
  const bool is_zero = most < SMALLEST;
  const float scale = is_zero ? 0.f : most / 127.f;
  const float32x4_t inverse = vdupq_n_f32(is_zero ? 0.f : 127.f / most);
  for (int i = 0; i < count; i += LANES) {
    const int16x4_t words = vmovn_s32(vcvtnq_s32_f32(vmulq_f32(load(x + i, count - i), inverse)));
    int8_t codes[8];
    vst1_s8(codes, vmovn_s16(vcombine_s16(words, words)));
    std::memcpy(to + i, codes, std::min(LANES, count - i));
  }
  std::memcpy(to + count, &scale, sizeof scale);
}

void store_numbers(const float* x, int count, Number number, void* to) {
  if (number == Number::INT8) return store_codes(x, count, static_cast<int8_t*>(to));
  for (int i = 0; i < count; i += LANES) {
    const float32x4_t v = load(x + i, count - i);
    if (number == Number::F32) {
      with_neon::store(static_cast<float*>(to) + i, count - i, v);
    } else {
      uint16_t halves[LANES];
      vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32(v)));
      std::memcpy(static_cast<uint16_t*>(to) + i, halves, std::min(LANES, count - i) * sizeof(uint16_t));
    }
  }
}

// The total of each of 4 vectors, in order. Each is summed in the same order, whatever its place.
INLINE float32x4_t totals(const float32x4_t x[4]) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }

// Numbers from one line to the next; after codes lies their scale.
template <class T>
constexpr size_t pitch(int head_dim) {
  return line_bytes(sizeof(T) == sizeof(float) ? Number::F32 : sizeof(T) == 2 ? Number::F16 : Number::INT8, head_dim) / sizeof(T);
}

// Scores of QUERIES queries against keys [count, d]. DIM is d; 0: any. Lanes are numbers of a key.
// `scores` is filled past count, up to a multiple of 4.
template <class T, int QUERIES, int DIM>
void score_keys(const T* key, int count, int head_dim, const float* query, float* scores) {
  constexpr int KEYS = 4;
  const int d = DIM ? DIM : head_dim, width = padded(d), whole = d / LANES * LANES;
  for (int t = 0; t < count; t += KEYS) {
    // The last keys stand in for keys past the end.
    const T* lines[KEYS];
    for (int i = 0; i < KEYS; i++) lines[i] = key + std::min(t + i, count - 1) * pitch<T>(d);
    float32x4_t sums[QUERIES][KEYS];
    for (int m = 0; m < QUERIES; m++)
      for (int i = 0; i < KEYS; i++) sums[m][i] = vdupq_n_f32(0.f);
    for (int j = 0; j < whole; j += LANES) {
      float32x4_t q[QUERIES];
      for (int m = 0; m < QUERIES; m++) q[m] = load(query + m * width + j);
      for (int i = 0; i < KEYS; i++) {
        const float32x4_t k = load(lines[i] + j);
        for (int m = 0; m < QUERIES; m++) sums[m][i] = vfmaq_f32(sums[m][i], k, q[m]);
      }
    }
    if (whole < d)
      for (int i = 0; i < KEYS; i++) {
        const float32x4_t k = load(lines[i] + whole, d - whole);
        for (int m = 0; m < QUERIES; m++) sums[m][i] = vfmaq_f32(sums[m][i], k, load(query + m * width + whole));
      }
    for (int m = 0; m < QUERIES; m++) vst1q_f32(scores + m * SCORES + t, totals(sums[m]));
  }
}

#include "vec/value_mixing.hpp"

// Scores first .. last become shares, and scores around them up to whole vectors 0.
Softmax share(float* scores, int first, int last, const float* bias, float softcap) {
  const float32x4_t nothing = vdupq_n_f32(-INFINITY), cap = vdupq_n_f32(softcap);
  const int begin = first / LANES * LANES;
  float32x4_t most_of = nothing;
  for (int t = begin; t < last; t += LANES) {
    const uint32x4_t there = vbicq_u32(with_neon::first(last - t), with_neon::first(first - t));
    float32x4_t x = load(scores + t);
    if (softcap != 0) x = vmulq_f32(cap, tanh(vdivq_f32(x, cap)));
    if (bias != nullptr) {
      float known[LANES] = {};
      for (int i = 0; i < LANES; i++)
        if (t + i >= first && t + i < last) known[i] = bias[t + i];
      x = vaddq_f32(x, load(known));
    }
    x = vbslq_f32(there, x, nothing);
    most_of = vmaxq_f32(most_of, x);  // NaN stays
    vst1q_f32(scores + t, x);
  }
  const float most = greatest(most_of);
  const bool is_empty = most == -INFINITY;
  const float32x4_t peak = vdupq_n_f32(is_empty ? 0.f : most);
  float32x4_t sum = vdupq_n_f32(0.f);
  for (int t = begin; t < last; t += LANES) {
    const float32x4_t x = vmulq_f32(vsubq_f32(load(scores + t), peak), vdupq_n_f32(LOG2_E));
    const uint32x4_t is_nothing = vcltq_f32(x, vdupq_n_f32(-126.f));  // NaN is not
    const float32x4_t part = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(exp2(x)), is_nothing));
    sum = vaddq_f32(sum, part);
    vst1q_f32(scores + t, part);
  }
  return {most, is_empty ? 0.f : total(sum)};
}

#include "vec/attention.hpp"

template <class T>
void score(const Part& part, float* scores) {
  const auto take = part.head_dim == 64 ? score_queries<T, 64> : score_queries<T, 0>;
  const auto score_one = [&](int i, int at) {
    take(static_cast<const T*>(part.keys[i]), part.counts[i], part.head_dim, part.query, part.queries, scores + at);
  };
  // Not a loop: GCC 12 for ARM takes one to write nothing, and leaves calls of this out.
  score_one(0, part.begin);
  score_one(1, part.begin + part.counts[0]);
}

void attend(const Part& part, float* scores, Softmax* softmax, float* mixed) {
  const Scales scales(part);
  with_type(part.key_number, [&](auto number) { score<decltype(number)>(part, scores); });
  finish(part, scales, scores, softmax, mixed);
}

}  // namespace
}  // namespace with_neon

const Attention neon_attention = {with_neon::rotate, with_neon::store_numbers, with_neon::attend};

}  // namespace kvcast
#endif
