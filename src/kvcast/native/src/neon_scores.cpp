// Rows of scores with NEON, which compilers for this processor use anyway.
#include "neon.hpp"
#if defined(__AARCH64EL__)
#include "halves.hpp"

namespace kvcast {
namespace {

void halves_to_floats(const uint16_t* halves, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = from_half(halves[i]);
}

#include "score_rows.hpp"

}  // namespace

const Scores neon_scores = {read_line, softmax, standardise, add_medians, exponentials};

}  // namespace kvcast
#endif
