// Activations of vectors, for the ends of products and for rows. Each instruction set includes this where its own
// instructions are allowed, so it includes nothing itself. The file that includes it has Vector and its arithmetic.
#pragma once

// 1 / (1 + e^-x)
INLINE Vector sigmoid(Vector x) { return divide(all(1), add(all(1), exp2(multiply(x, all(-LOG2_E))))); }

// tanh to 2e-7, where a set has none of its own.
template <class Float>
INLINE Float tanh(Float x) {
  const Float square = multiply(x, x), power = exp2(multiply(x, all(2 * LOG2_E)));
  const Float far = subtract(all(1), divide(all(2), add(power, all(1))));
  Float sum = all(62 / 2835.f);
  for (float term : {-17 / 315.f, 2 / 15.f, -1 / 3.f, 1.f}) sum = multiply_add(sum, square, all(term));
  return if_less(square, all(0.0625f), multiply(sum, x), far);
}

struct Same {
  INLINE Vector operator()(Vector x) const { return x; }
};

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
struct Gelu {
  INLINE Vector operator()(Vector x) const {
    const Vector z = multiply(magnitude(x), all(0.70710678f));
    const Vector t = divide(all(1), multiply_add(z, all(0.3275911f), all(1)));
    Vector sum = all(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) sum = multiply_add(sum, t, all(term));
    const Vector power = exp2(multiply(multiply(z, z), all(-LOG2_E)));
    const Vector tail = multiply(multiply(sum, t), multiply(power, all(0.5f)));
    return multiply(x, by_sign(x, tail, subtract(all(1), tail)));
  }
};

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u)
struct GeluTanh {
  INLINE Vector operator()(Vector x) const {
    const Vector cubic = multiply_add(multiply(x, x), all(2 * 0.79788456f * 0.044715f), all(2 * 0.79788456f));
    return multiply(x, sigmoid(multiply(x, cubic)));
  }
};

struct Silu {
  INLINE Vector operator()(Vector x) const { return multiply(x, sigmoid(x)); }
};

struct Relu {
  INLINE Vector operator()(Vector x) const { return positive(x); }
};

// Cephes' tanhf: a polynomial near 0, where 2 * sigmoid(2 x) - 1 would lose digits.
struct Tanh {
  INLINE Vector operator()(Vector x) const {
    const Vector z = multiply(x, x);
    Vector sum = all(-5.70498872745e-3f);
    for (float term : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f})
      sum = multiply_add(sum, z, all(term));
    const Vector near = multiply_add(multiply(sum, z), x, x);
    const Vector far = multiply_add(all(2), sigmoid(add(x, x)), all(-1));
    return if_less(magnitude(x), all(0.625f), near, far);
  }
};

struct Sigmoid {
  INLINE Vector operator()(Vector x) const { return sigmoid(x); }
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
    case Activation::SIGMOID: return work(Sigmoid());
    default: return work(Same());
  }
}
