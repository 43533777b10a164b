// Shared by the parts of the NEON instruction sets.
#pragma once
#include "kernels.hpp"
#if defined(__AARCH64EL__)
#include <arm_neon.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#define INLINE inline __attribute__((always_inline))

namespace kvcast {

extern const Peaks neon_peaks, neon_i8mm_peaks;
extern const Gemm neon_gemm, neon_i8mm_gemm;
extern const Attention neon_attention;

// Names that the other instruction sets have too.
namespace with_neon {

// See fetching.hpp: whether ARM's processors gain from it was not measured.
INLINE void fetch_ahead(const void*, size_t) {}

constexpr float LOG2_E = 1.44269504f;
constexpr int LANES = 4;
constexpr int STRIP = 16;             // columns whose sums for MOST_ROWS rows fit into 32 registers
constexpr int QUADS = STRIP / LANES;  // vectors of a strip
constexpr int VECTORS = BLOCK / LANES;

using Vector = float32x4_t;
using Mask = uint32x4_t;
using Some = int;  // lane mask of a partial vector, in this ISA's form
constexpr int FLOATS = LANES;
constexpr int SUMS = QUADS;  // accumulators that norms use in turn: one alone would wait for each addition

INLINE Some some(int count) { return count; }

// The first `count` of 4 values, then zeros. Nothing else is read.
INLINE float32x4_t load(const float* from, int count) {
  if (count >= LANES) return vld1q_f32(from);
  float numbers[LANES] = {};
  if (count > 0) std::memcpy(numbers, from, count * sizeof(float));
  return vld1q_f32(numbers);
}

INLINE void store(float* to, float32x4_t x) { vst1q_f32(to, x); }
INLINE void store(float* to, int count, float32x4_t x) {
  if (count >= LANES) return vst1q_f32(to, x);
  float numbers[LANES];
  vst1q_f32(numbers, x);
  if (count > 0) std::memcpy(to, numbers, count * sizeof(float));
}

INLINE float32x4_t load(const float* from) { return vld1q_f32(from); }
INLINE float32x4_t load(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
INLINE float32x4_t load(const uint16_t* from, int count) {
  if (count >= LANES) return load(from);
  uint16_t halves[LANES] = {};
  if (count > 0) std::memcpy(halves, from, count * sizeof(uint16_t));
  return load(halves);
}

INLINE float32x4_t load(const int8_t* from) {
  int8_t codes[8] = {};
  std::memcpy(codes, from, LANES);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(codes)))));
}
INLINE float32x4_t load(const int8_t* from, int count) {
  if (count >= LANES) return load(from);
  int8_t codes[LANES] = {};
  if (count > 0) std::memcpy(codes, from, count);
  return load(codes);
}

INLINE void store(uint16_t* to, int count, float32x4_t x) {
  uint16_t halves[LANES];
  vst1_u16(halves, vreinterpret_u16_f16(vcvt_f16_f32(x)));
  std::memcpy(to, halves, std::min(LANES, count) * sizeof(uint16_t));
}

// Rounds to the nearest integers.
INLINE void store(int8_t* to, int count, float32x4_t x) {
  const int16x4_t words = vmovn_s32(vcvtnq_s32_f32(x));
  int8_t codes[8];
  vst1_s8(codes, vmovn_s16(vcombine_s16(words, words)));
  std::memcpy(to, codes, std::min(LANES, count));
}

// The first `count` of 4 lanes, clamped to 0 .. 4.
INLINE uint32x4_t first(int count) {
  constexpr int32_t PLACES[LANES] = {0, 1, 2, 3};
  return vcgtq_s32(vdupq_n_s32(count), vld1q_s32(PLACES));
}

INLINE Mask between(int begin, int end) { return vbicq_u32(first(end), first(begin)); }
INLINE Vector keep(Mask there, Vector x) { return vreinterpretq_f32_u32(vandq_u32(there, vreinterpretq_u32_f32(x))); }  // elsewhere 0
INLINE Vector select(Mask there, Vector x, Vector other) { return vbslq_f32(there, x, other); }
INLINE Vector load_between(const float* from, int begin, int end) {
  float numbers[LANES] = {};
  for (int i = 0; i < LANES; i++)
    if (i >= begin && i < end) numbers[i] = from[i];
  return load(numbers);
}

// Arithmetic under the names that shared code has for it.

INLINE Vector all(float x) { return vdupq_n_f32(x); }
INLINE Vector add(Vector a, Vector b) { return vaddq_f32(a, b); }
INLINE Vector subtract(Vector a, Vector b) { return vsubq_f32(a, b); }
INLINE Vector multiply(Vector a, Vector b) { return vmulq_f32(a, b); }
INLINE Vector divide(Vector a, Vector b) { return vdivq_f32(a, b); }
INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
INLINE Vector difference(Vector a, Vector b, Vector c, Vector d) { return vfmsq_f32(vmulq_f32(a, b), c, d); }
INLINE Vector magnitude(Vector x) { return vabsq_f32(x); }
INLINE Vector greater(Vector a, Vector b) { return vmaxq_f32(a, b); }
INLINE Vector positive(Vector x) { return vmaxnmq_f32(x, vdupq_n_f32(0.f)); }  // of NaN 0, as everywhere
INLINE Vector by_sign(Vector x, Vector negative, Vector other) {
  return vbslq_f32(vcltzq_s32(vreinterpretq_s32_f32(x)), negative, other);
}
INLINE Vector if_less(Vector a, Vector b, Vector less, Vector other) { return vbslq_f32(vcltq_f32(a, b), less, other); }

// x, and 0 where `of` is less than `bound`; NaN is not.
INLINE Vector unless_less(Vector of, Vector bound, Vector x) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(of, bound)));
}

// Horizontal reductions, each in a fixed order.
INLINE float total(float32x4_t x) { return vaddvq_f32(x); }
INLINE float greatest(float32x4_t x) { return vmaxvq_f32(x); }  // NaN if there is one

// The elementwise maximum; NaN if either is.
struct Peak {
  Vector most;

  INLINE void take(Vector x) { most = vmaxq_f32(most, x); }
  INLINE float value() const { return greatest(most); }
};

// 2^x to 2e-7 relative; far below 0 nearly 0, from 128 on infinite; NaN stays. Cephes' exp2f.
INLINE float32x4_t exp2(float32x4_t x) {
  x = vminq_f32(vdupq_n_f32(128.f), vmaxq_f32(vdupq_n_f32(-126.f), x));
  const float32x4_t whole = vrndnq_f32(x), rest = vsubq_f32(x, whole);
  float32x4_t sum = vdupq_n_f32(1.5353362e-4f);
  for (float term : {1.3398874e-3f, 9.6184373e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f})
    sum = vfmaq_f32(vdupq_n_f32(term), sum, rest);
  const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127));
  return vmulq_f32(sum, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}

// sums += a [ROWS, k] x w [k, STRIP].
template <int ROWS>
INLINE void multiply_strip(const float* w, int inputs, const float* a, size_t stride, float32x4_t sums[ROWS][QUADS]) {
  for (int k = 0; k < inputs; k++, w += STRIP) {
    float32x4_t x[QUADS];
    for (int z = 0; z < QUADS; z++) x[z] = vld1q_f32(w + z * LANES);
    for (int m = 0; m < ROWS; m++) {
      const float32x4_t y = vld1q_dup_f32(a + m * stride + k);
      for (int z = 0; z < QUADS; z++) sums[m][z] = vfmaq_f32(sums[m][z], x[z], y);
    }
  }
}

#include "vec/activations.hpp"

}  // namespace with_neon
}  // namespace kvcast
#endif
