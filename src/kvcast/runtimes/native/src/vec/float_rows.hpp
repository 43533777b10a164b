// Rows of floats beside attention and products: norms, scores and rows of files, for sets with vectors. Each instruction
// set includes this where its own instructions are allowed, so it includes nothing but other such files. The file that
// includes it has Vector and its arithmetic, and to_halves_and_back(x, count).
#pragma once

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i += FLOATS) {
    const Some there = some(count - i);
    store(out + i, there, load(halves + i, there));
  }
}

#include "vec/rows.hpp"
#include "vec/scores.hpp"

// Without a scalar loop, which compilers would otherwise emit for a tile's few values.
Softmax exponentials(const float* x, const float* added, int count) {
  const Vector nothing = all(-INFINITY);
  Vector sums[VECTORS];
  Vector most = nothing, sum = all(0);
  for (int z = 0; z < VECTORS; z++) {
    const int left = count - z * FLOATS;
    const Some there = some(left);
    sums[z] = add(load(x + z * FLOATS, there), load(added + z * FLOATS, there));
    if (FLOATS == 16 || left < FLOATS) sums[z] = select(first(left), sums[z], nothing);
    most = greater(most, sums[z]);
  }
  const float peak = greatest(most);
  if (peak < LEAST) return {peak, 0};  // none takes part
  for (const Vector& part : sums) sum = add(sum, exp2(multiply(subtract(part, all(peak)), all(LOG2_E))));
  return {peak, total(sum)};
}

constexpr Scores SCORES_OF_ROWS = {read_line, softmax, standardise, add_medians, exponentials, peaks, sums, weights};

namespace files {

INLINE void halves(const uint8_t* from, int count, float* out) { halves_to_floats(reinterpret_cast<const uint16_t*>(from), count, out); }

#include "vec/dequantize.hpp"

}  // namespace files
