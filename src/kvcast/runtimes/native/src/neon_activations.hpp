// Activations with NEON, for the ends of products and for rows.
#pragma once
#include "neon.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {

// 1 / (1 + e^-x)
INLINE float32x4_t sigmoid(float32x4_t x) {
  const float32x4_t one = vdupq_n_f32(1.f);
  return vdivq_f32(one, vaddq_f32(one, exp2(vmulq_f32(x, vdupq_n_f32(-LOG2_E)))));
}

struct Same {
  INLINE float32x4_t operator()(float32x4_t x) const { return x; }
};

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
struct Gelu {
  INLINE float32x4_t operator()(float32x4_t x) const {
    const float32x4_t one = vdupq_n_f32(1.f), z = vmulq_f32(vabsq_f32(x), vdupq_n_f32(0.70710678f));
    const float32x4_t t = vdivq_f32(one, vfmaq_f32(one, z, vdupq_n_f32(0.3275911f)));
    float32x4_t sum = vdupq_n_f32(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
      sum = vfmaq_f32(vdupq_n_f32(term), sum, t);
    const float32x4_t power = exp2(vmulq_f32(vmulq_f32(z, z), vdupq_n_f32(-LOG2_E)));
    const float32x4_t tail = vmulq_f32(vmulq_f32(sum, t), vmulq_f32(power, vdupq_n_f32(0.5f)));
    const uint32x4_t is_negative = vcltzq_s32(vreinterpretq_s32_f32(x));
    return vmulq_f32(x, vbslq_f32(is_negative, tail, vsubq_f32(one, tail)));
  }
};

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u)
struct GeluTanh {
  INLINE float32x4_t operator()(float32x4_t x) const {
    const float32x4_t cubic = vfmaq_f32(vdupq_n_f32(2 * 0.79788456f), vmulq_f32(x, x),
                                        vdupq_n_f32(2 * 0.79788456f * 0.044715f));
    return vmulq_f32(x, sigmoid(vmulq_f32(x, cubic)));
  }
};

struct Silu {
  INLINE float32x4_t operator()(float32x4_t x) const { return vmulq_f32(x, sigmoid(x)); }
};

struct Relu {  // of NaN 0, as everywhere
  INLINE float32x4_t operator()(float32x4_t x) const { return vmaxnmq_f32(x, vdupq_n_f32(0.f)); }
};

// Cephes' tanhf: a polynomial near 0, where 2 * sigmoid(2 x) - 1 would lose digits.
struct Tanh {
  INLINE float32x4_t operator()(float32x4_t x) const {
    const float32x4_t z = vmulq_f32(x, x);
    float32x4_t sum = vdupq_n_f32(-5.70498872745e-3f);
    for (float term : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
      sum = vfmaq_f32(vdupq_n_f32(term), sum, z);
    const float32x4_t near = vfmaq_f32(x, vmulq_f32(sum, z), x);
    const float32x4_t far = vfmaq_f32(vdupq_n_f32(-1.f), vdupq_n_f32(2.f), sigmoid(vaddq_f32(x, x)));
    return vbslq_f32(vcltq_f32(vabsq_f32(x), vdupq_n_f32(0.625f)), near, far);
  }
};

// Calls work(f) where f(x) is the activation.
template <class Work>
INLINE void with_activation(Activation activation, Work&& work) {
  switch (activation) {
    case Activation::GELU: return work(Gelu());
    case Activation::GELU_TANH: return work(GeluTanh());
    case Activation::SILU: return work(Silu());
    case Activation::RELU: return work(Relu());
    case Activation::TANH: return work(Tanh());
    default: return work(Same());
  }
}

}  // namespace with_neon
}  // namespace kvcast
#endif
