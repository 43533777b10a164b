// Rows of logits: top-k, draws and penalties. Thread-safe.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels.hpp"

namespace kvcast {

// logits [rows, vocab] with a stride.
struct LogitRows {
  float* data;
  size_t stride;
  int rows, vocab;

  float* row(int r) const { return data + r * stride; }
};

// Of each row the k likeliest tokens, best first, of equals the first; their logits; and log(sum(exp)), where `sums`.
// `out` [rows, 2 * k + 1] has tokens, logits and the sum. All values of a row with NaN or infinity are NaN, its tokens
// any. k may be 0.
union Word {
  int32_t token;
  float number;
};
void likeliest(const Instructions&, const LogitRows&, int k, bool sums, Word* out);

// Temperature above 0, then top-k (0: none), top-p (1: none) and min-p (0: none), in this order.
struct Sampling {
  float temperature;
  int32_t top_k;
  double top_p, min_p;
};

// The token at `number` in [0, 1) of a row's cumulative probabilities; -1 if the row's maximum is NaN or infinite.
int64_t draw(const Instructions&, const float* logits, int vocab, const Sampling&, double number);

// On the logits of each token that a row has seen: the first divides positive and multiplies negative logits (1: none),
// the second is taken off once, the third as often as the token was seen.
struct Penalties {
  float repetition;
  double presence, frequency;
};

// tokens [rows, count] with a stride; ids outside the vocabulary are skipped.
void penalise(const LogitRows&, const int64_t* tokens, size_t stride, int count, const Penalties&);

// The rules of Whisper's timestamps, which are the tokens from `begin` to `end`; kvcast/whisper/filters.py explains them.
struct TimestampRules {
  int begin, end, end_of_text, no_timestamps;
};

// Applied to rows with generated tokens [rows, count] with a stride, count >= 1.
void apply_timestamp_rules(const Instructions&, const LogitRows&, const int64_t* written, size_t stride, int count,
                           const TimestampRules&);

}  // namespace kvcast
