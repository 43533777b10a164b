// Rows of scores with what every processor has: on ARM that is NEON.
#include "halves.hpp"
#include "plain.hpp"

namespace kvcast {
namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
}

#include "score_rows.hpp"

}  // namespace

const Scores plain_scores = {read_line, softmax, standardise, add_medians, exponentials};

}  // namespace kvcast
