// Norms and activations with NEON.
#include "neon/activations.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {
namespace {

// Numbers i.. of x [width], or `otherwise` where there is no x.
INLINE float32x4_t load_or(const float* x, int i, int width, float otherwise) {
  return x ? load(x + i, width - i) : vdupq_n_f32(otherwise);
}

// f(x) of all numbers, summed in four vectors in turn: a single one would wait for each addition.
template <class Term>
INLINE float sum_of(const float* x, int width, Term&& term) {
  float32x4_t sums[QUADS];
  for (int z = 0; z < QUADS; z++) sums[z] = vdupq_n_f32(0.f);
  int i = 0;
  for (; i + STRIP <= width; i += STRIP)
    for (int z = 0; z < QUADS; z++) sums[z] = term(sums[z], load(x + i + z * LANES), LANES);
  for (; i < width; i += LANES) sums[0] = term(sums[0], load(x + i, width - i), width - i);
  return total(vaddq_f32(vaddq_f32(sums[0], sums[1]), vaddq_f32(sums[2], sums[3])));
}

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  const float sum = sum_of(x, width, [](float32x4_t sum, float32x4_t v, int) { return vaddq_f32(sum, v); });
  const float32x4_t mean = vdupq_n_f32(sum / width);
  const float squares = sum_of(x, width, [&](float32x4_t sum, float32x4_t v, int count) {
    const float32x4_t apart = vsubq_f32(v, mean);
    const float32x4_t d = vreinterpretq_f32_u32(vandq_u32(first(count), vreinterpretq_u32_f32(apart)));
    return vfmaq_f32(sum, d, d);
  });
  const float32x4_t factor = vdupq_n_f32(1 / std::sqrt(squares / width + epsilon));
  for (int i = 0; i < width; i += LANES) {
    const float32x4_t d = vmulq_f32(vsubq_f32(load(x + i, width - i), mean), factor);
    store(out + i, width - i, vfmaq_f32(load_or(bias, i, width, 0), d, load_or(gain, i, width, 1)));
  }
}

void rms_norm(const float* x, const float* gain, float epsilon, int width, float* out) {
  const float squares = sum_of(x, width, [](float32x4_t sum, float32x4_t v, int) { return vfmaq_f32(sum, v, v); });
  const float32x4_t factor = vdupq_n_f32(1 / std::sqrt(squares / width + epsilon));
  for (int i = 0; i < width; i += LANES)
    store(out + i, width - i, vmulq_f32(vmulq_f32(load(x + i, width - i), factor), load_or(gain, i, width, 1)));
}

void gate(Activation activation, const float* gate, const float* up, int count, float* out) {
  with_activation(activation, [&](auto f) {
    for (int i = 0; i < count; i += LANES)
      store(out + i, count - i, vmulq_f32(f(load(gate + i, count - i)), load(up + i, count - i)));
  });
}

#include "vec/rows.hpp"

}  // namespace
}  // namespace with_neon

const Rows neon_rows = {with_neon::layer_norm, with_neon::rms_norm, with_neon::gate, with_neon::state_columns, with_neon::convolve};

}  // namespace kvcast
#endif
