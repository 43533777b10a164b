// Rows of scores with every processor's instructions: on ARM that is NEON.
#include "halves.hpp"
#include "plain.hpp"

namespace kvcast {
namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
}

#include "score_rows.hpp"

Softmax exponentials(const float* x, const float* added, int count) {
  float sums[BLOCK];
  for (int i = 0; i < count; i++) sums[i] = x[i] + added[i];
  const float most = greatest(sums, count);
  if (most < LEAST) return {most, 0};  // none takes part
  to_exponentials(sums, most, count);
  return {most, sum(sums, count)};
}

}  // namespace

const Scores plain_scores = {read_line, softmax, standardise, add_medians, exponentials};

}  // namespace kvcast
