// Norms and gates. Each instruction set includes this where its own instructions are allowed, so it includes nothing
// but other such files. The file that includes it has Vector and its arithmetic.
#pragma once

// Elements i.. of x [width], or `otherwise` if x is null.
INLINE Vector load_or(const float* x, int i, Some there, float otherwise) { return x ? load(x + i, there) : all(otherwise); }

// term(sum, x, count) of all elements, in SUMS vectors in turn.
template <class Term>
INLINE float sum_of(const float* x, int width, Term&& term) {
  Vector sums[SUMS];
  for (Vector& sum : sums) sum = all(0);
  int i = 0;
  if (SUMS > 1)
    for (; i + SUMS * FLOATS <= width; i += SUMS * FLOATS)
      for (int z = 0; z < SUMS; z++) sums[z] = term(sums[z], load(x + i + z * FLOATS), FLOATS);
  for (; i < width; i += FLOATS) sums[0] = term(sums[0], load(x + i, some(width - i)), width - i);
  for (int left = SUMS / 2; left; left /= 2)
    for (int z = 0; z < left; z++) sums[z] = add(sums[2 * z], sums[2 * z + 1]);
  return total(sums[0]);
}

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  const float sum = sum_of(x, width, [](Vector sum, Vector v, int) { return add(sum, v); });
  const Vector mean = all(sum / width);
  const float squares = sum_of(x, width, [&](Vector sum, Vector v, int count) {
    const Vector d = keep(first(count), subtract(v, mean));
    return multiply_add(d, d, sum);
  });
  const Vector factor = all(1 / std::sqrt(squares / width + epsilon));
  for (int i = 0; i < width; i += FLOATS) {
    const Some there = some(width - i);
    const Vector d = multiply(subtract(load(x + i, there), mean), factor);
    store(out + i, there, multiply_add(d, load_or(gain, i, there, 1), load_or(bias, i, there, 0)));
  }
}

void rms_norm(const float* x, const float* gain, float epsilon, int width, float* out) {
  const float squares = sum_of(x, width, [](Vector sum, Vector v, int) { return multiply_add(v, v, sum); });
  const Vector factor = all(1 / std::sqrt(squares / width + epsilon));
  for (int i = 0; i < width; i += FLOATS) {
    const Some there = some(width - i);
    store(out + i, there, multiply(multiply(load(x + i, there), factor), load_or(gain, i, there, 1)));
  }
}

void gate(Activation activation, const float* gate, const float* up, int count, float* out) {
  with_activation(activation, [&](auto f) {
    for (int i = 0; i < count; i += FLOATS) {
      const Some there = some(count - i);
      store(out + i, there, multiply(f(load(gate + i, there)), load(up + i, there)));
    }
  });
}

#include "vec/states.hpp"

constexpr Rows ROWS = {layer_norm, rms_norm, gate, state_columns, convolve};
