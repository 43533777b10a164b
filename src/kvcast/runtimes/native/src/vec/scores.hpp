// Rows of scores in plain C++, written so that compilers make vectors of its inner loops.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has `halves_to_floats`. Sums are taken in
// lanes, in the same order whatever the vectors' width.
#pragma once

constexpr int LANES = 16;
constexpr float LEAST = -3.4e38f;  // smaller values are -infinity
constexpr float LEAST_EXPONENT = -87;  // e to less than this is subnormal

void read_line(const void* line, Number number, int head_dim, float* out) {
  switch (number) {
    case Number::F32: {
      const float* x = static_cast<const float*>(line);
      for (int i = 0; i < head_dim; i++) out[i] = x[i];
      break;
    }
    case Number::F16: halves_to_floats(static_cast<const uint16_t*>(line), head_dim, out); break;
    case Number::INT8: {
      const int8_t* codes = static_cast<const int8_t*>(line);
      float scale;
      __builtin_memcpy(&scale, codes + head_dim, sizeof scale);
      for (int i = 0; i < head_dim; i++) out[i] = codes[i] * scale;
      break;
    }
  }
}

// e^x for LEAST_EXPONENT <= x <= 0, within 2 units in the last place (Cephes' expf polynomial).
inline float exponential(float x) {
  const int32_t power = static_cast<int32_t>(x * 1.44269504f - 0.5f);
  const float n = static_cast<float>(power), r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1;
  const int32_t bits = (power + 127) * (1 << 23);
  float factor;
  __builtin_memcpy(&factor, &bits, sizeof factor);
  return y * factor;
}

float greatest_of(const float* x, int count) {
  float lanes[LANES], most = x[0];
  for (float& lane : lanes) lane = most;
  const int whole = count / LANES * LANES;
  for (int i = 0; i < whole; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] = lanes[l] < x[i + l] ? x[i + l] : lanes[l];
  for (float lane : lanes) most = most < lane ? lane : most;
  for (int i = whole; i < count; i++) most = most < x[i] ? x[i] : most;
  return most;
}

float total_of(const float* x, int count) {
  float lanes[LANES] = {}, total = 0;
  const int whole = count / LANES * LANES;
  for (int i = 0; i < whole; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] += x[i + l];
  for (int i = whole; i < count; i++) lanes[i - whole] += x[i];
  for (float lane : lanes) total += lane;
  return total;
}

// e^(x - most) in place, for values of at most `most`.
void to_exponentials(float* x, float most, int count) {
  // A separate loop: fused with the other, GCC does not vectorize it.
  for (int i = 0; i < count; i++) {
    const float less = x[i] - most;
    x[i] = less > LEAST_EXPONENT ? less : LEAST_EXPONENT;
  }
  for (int i = 0; i < count; i++) x[i] = exponential(x[i]);
}

void softmax(const float* x, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = x[i];
  to_exponentials(out, greatest_of(x, count), count);
  const float total = total_of(out, count);
  for (int i = 0; i < count; i++) out[i] /= total;
}

void standardise(float* x, size_t stride, int tokens, int count) {
  float means[BLOCK] = {}, factors[BLOCK] = {};
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) means[i] += x[s * stride + i];
  for (int i = 0; i < count; i++) means[i] /= static_cast<float>(tokens);
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) {
      const float d = x[s * stride + i] -= means[i];
      factors[i] += d * d;
    }
  // A frame to which all tokens attend equally has no weight for any.
  for (int i = 0; i < count; i++) {
    const float deviation = __builtin_sqrtf(factors[i] / static_cast<float>(tokens));
    factors[i] = deviation == 0 ? 1 : 1 / deviation;
  }
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) x[s * stride + i] *= factors[i];
}

inline void sort(float& a, float& b) {
  const float low = b < a ? b : a, high = b < a ? a : b;
  a = low;
  b = high;
}

// With the network of N. Devillard's "Fast median search".
void add_medians(const float* x, int count, float* out) {
  for (int i = 0; i < count; i++) {
    float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3], e = x[i + 4], f = x[i + 5], g = x[i + 6];
    sort(a, f), sort(a, d), sort(b, g), sort(c, e), sort(a, b), sort(d, f), sort(c, g);
    sort(c, d), sort(d, g), sort(e, f), sort(b, e), sort(b, d), sort(d, e);
    out[i] += d;
  }
}

// Rows of logits in panels: the greatest and the sum of exponentials of each column.

constexpr float NOTHING = -126;  // 2 to less than this counts as nothing
constexpr int VECTORS_OF_LINE = PANEL_COLUMNS / FLOATS;

// The line of PANEL_COLUMNS values that begins here; if there are fewer, a copy padded with -infinity.
INLINE const float* line(const float* from, int there, float* copy) {
  if (there >= PANEL_COLUMNS) return from;
  for (int l = 0; l < PANEL_COLUMNS; l++) copy[l] = l < there ? from[l] : -INFINITY;
  return copy;
}

INLINE Vector weight(Vector x, Vector most, Vector factor) {
  const Vector power = multiply(subtract(x, most), factor);
  const Vector normal = if_less(power, all(NOTHING), all(0), power);  // subnormal results would take long
  return if_less(power, all(NOTHING), all(0), exp2(normal));
}

bool peaks(const float* x, int count, float* peaks) {
  float copy[PANEL_COLUMNS];
  Vector odd = all(0);
  for (int first = 0; first < count; first += PANEL, peaks += PANEL_COLUMNS) {
    const int end = count - first < PANEL ? count : first + PANEL;
    Vector most[VECTORS_OF_LINE];
    for (Vector& part : most) part = all(-INFINITY);
    for (int i = first; i < end; i += PANEL_COLUMNS) {
      const float* from = line(x + i, end - i, copy);
      for (int z = 0; z < VECTORS_OF_LINE; z++) {
        const Vector numbers = load(from + z * FLOATS);
        most[z] = greater(numbers, most[z]);
        odd = add(odd, if_less(numbers, all(INFINITY), all(0), numbers));
      }
    }
    for (int z = 0; z < VECTORS_OF_LINE; z++) store(peaks + z * FLOATS, most[z]);
  }
  store(copy, odd);
  for (int l = 0; l < FLOATS; l++)
    if (copy[l] != 0) return false;
  return true;
}

void sums(const float* x, const float* peaks, int count, float most, float factor, float* sums) {
  float copy[PANEL_COLUMNS];
  for (int first = 0; first < count; first += PANEL, peaks += PANEL_COLUMNS, sums += PANEL_COLUMNS) {
    const int end = count - first < PANEL ? count : first + PANEL;
    float peak = peaks[0];
    for (int l = 1; l < PANEL_COLUMNS; l++) peak = peak < peaks[l] ? peaks[l] : peak;
    Vector sum[VECTORS_OF_LINE];
    for (Vector& part : sum) part = all(0);
    if ((peak - most) * factor >= NOTHING)
      for (int i = first; i < end; i += PANEL_COLUMNS) {
        const float* from = line(x + i, end - i, copy);
        for (int z = 0; z < VECTORS_OF_LINE; z++)
          sum[z] = add(sum[z], weight(load(from + z * FLOATS), all(most), all(factor)));
      }
    for (int z = 0; z < VECTORS_OF_LINE; z++) store(sums + z * FLOATS, sum[z]);
  }
}

void weights(const float* x, int count, float most, float factor, float* out) {
  float copy[PANEL_COLUMNS];
  for (int i = 0; i < count; i += PANEL_COLUMNS) {
    const float* from = line(x + i, count - i, copy);
    for (int z = 0; z < VECTORS_OF_LINE; z++)
      store(out + i + z * FLOATS, weight(load(from + z * FLOATS), all(most), all(factor)));
  }
}
