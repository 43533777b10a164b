// Rows of logits in panels: the greatest and the sum of exponentials of each column.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has Vector, FLOATS and arithmetic.
#pragma once

constexpr float NOTHING = -126;  // 2 to less than this counts as nothing
constexpr int VECTORS_OF_LINE = PANEL_COLUMNS / FLOATS;

// The line of PANEL_COLUMNS numbers that begins here; if there are fewer, a copy that -infinity fills up.
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
