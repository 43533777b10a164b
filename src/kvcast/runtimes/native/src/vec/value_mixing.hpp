// Attention's tanh and products of shares and values, for vectors of up to 8 floats. Each instruction set includes
// this where its own instructions are allowed, so it includes nothing itself. The file that includes it has Vector and
// its arithmetic, pitch<T>(head_dim): numbers from one line to the next, and fetch_ahead(from, bytes).
#pragma once

// tanh to 2e-7.
INLINE Vector tanh(Vector x) {
  const Vector square = multiply(x, x), power = exp2(multiply(x, all(2 * LOG2_E)));
  const Vector far = subtract(all(1), divide(all(2), add(power, all(1))));
  Vector sum = all(62 / 2835.f);
  for (float term : {-17 / 315.f, 2 / 15.f, -1 / 3.f, 1.f}) sum = multiply_add(sum, square, all(term));
  return if_less(square, all(0.0625f), multiply(sum, x), far);
}

// mixed [ROWS, width] += shares [ROWS, SCORES] x values [count, d], of COLUMNS vectors of d, of which the last has
// `there` numbers.
template <class T, int ROWS, int COLUMNS>
void mix_values(const T* value, int count, int head_dim, const float* shares, float* mixed, int there) {
  const int width = padded(head_dim);
  Vector sums[ROWS][COLUMNS];
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) sums[m][z] = load(mixed + m * width + z * FLOATS);
  for (int t = 0; t < count; t++, value += pitch<T>(head_dim)) {
    fetch_ahead(value, COLUMNS * FLOATS * sizeof(T));
    Vector v[COLUMNS];
    for (int z = 0; z < COLUMNS; z++) v[z] = COLUMNS == 1 ? load(value, there) : load(value + z * FLOATS);
    for (int m = 0; m < ROWS; m++) {
      const Vector factor = all(shares[m * SCORES + t]);
      for (int z = 0; z < COLUMNS; z++) sums[m][z] = multiply_add(v[z], factor, sums[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) store(mixed + m * width + z * FLOATS, sums[m][z]);
}

template <class T, int ROWS>
void mix_rows(const T* value, int count, int head_dim, const float* shares, float* mixed) {
  constexpr int COLUMNS = (ROWS == 1 ? 64 : ROWS == 2 ? 32 : 16) / FLOATS;
  int d = 0;
  for (; d + COLUMNS * FLOATS <= head_dim; d += COLUMNS * FLOATS)
    mix_values<T, ROWS, COLUMNS>(value + d, count, head_dim, shares, mixed + d, FLOATS);
  for (; d < head_dim; d += FLOATS)
    mix_values<T, ROWS, 1>(value + d, count, head_dim, shares, mixed + d, head_dim - d);
}
