// Rows of scores with every processor's instructions: on ARM that is NEON.
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "halves.hpp"
#include "plain/plain.hpp"

namespace kvcast {
namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
}

// Vectors of compilers, which every processor has.
#define INLINE inline __attribute__((always_inline))
constexpr int FLOATS = 4;
constexpr float LOG2_E = 1.44269504f;
typedef float Vector __attribute__((vector_size(FLOATS * sizeof(float))));
typedef int32_t Integers __attribute__((vector_size(FLOATS * sizeof(float))));

INLINE Vector load(const float* from) {
  Vector x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
INLINE void store(float* to, Vector x) { std::memcpy(to, &x, sizeof x); }
INLINE Vector all(float x) { return Vector{x, x, x, x}; }
INLINE Vector add(Vector a, Vector b) { return a + b; }
INLINE Vector subtract(Vector a, Vector b) { return a - b; }
INLINE Vector multiply(Vector a, Vector b) { return a * b; }
INLINE Vector if_less(Vector a, Vector b, Vector less, Vector other) { return a < b ? less : other; }
INLINE Vector greater(Vector a, Vector b) { return b < a ? a : b; }

// 2^x for x <= 0; far below 0 anything. With the polynomial of the other sets.
INLINE Vector exp2(Vector x) {
  x = if_less(x, all(-126), all(-126), x);
  const Integers whole = __builtin_convertvector(x - 0.5f, Integers);
  const Vector rest = x - __builtin_convertvector(whole, Vector);
  Vector sum = all(1.5353362e-4f);
  for (float term : {1.3398874e-3f, 9.6184373e-3f, 5.5503325e-2f, 2.4022648e-1f, 6.9314720e-1f, 1.f}) sum = sum * rest + term;
  const Integers bits = (whole + 127) * (1 << 23);
  Vector power;
  std::memcpy(&power, &bits, sizeof power);
  return sum * power;
}

#include "vec/scores.hpp"

Softmax exponentials(const float* x, const float* added, int count) {
  float sums[BLOCK];
  for (int i = 0; i < count; i++) sums[i] = x[i] + added[i];
  const float most = greatest_of(sums, count);
  if (most < LEAST) return {most, 0};  // none takes part
  to_exponentials(sums, most, count);
  return {most, total_of(sums, count)};
}

}  // namespace

const Scores plain_scores = {read_line, softmax, standardise, add_medians, exponentials, peaks, sums, weights};

}  // namespace kvcast
