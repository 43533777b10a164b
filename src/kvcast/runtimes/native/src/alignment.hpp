// How tokens attend to speech, for their places in time, and how likely they were. Letters in shapes: h alignment heads, s tokens,
// t positions of the encoded input, f of them (frames) of the recording, d head.
#pragma once
#include "attention.hpp"
#include "products.hpp"

namespace kvcast {

// Products of queries and keys, times the scale: before any softmax.
struct AlignmentScores {
  int heads, tokens, positions, head_dim;
  Flat query;  // [s, h * d]
  float scale;
  Number number;
  const int64_t* keys;  // [h], addresses of lines [t] of a cache
  float* out;           // [h, s, t]
};
void alignment_scores(Machine&, const AlignmentScores&);

// How much each token stands out at each frame: the softmax over frames; of each frame the standard score
// among the tokens; medians of a frame and its three neighbours on both sides, mirrored at the ends; the mean
// of all heads. As kvcast/runtimes/attention_by_token.py computes it.
struct StandingOut {
  int heads, tokens, positions, frames;
  const float* scores;  // [h, s, t]
  float* out;           // [s, f]
};
void stand_out(Machine&, const StandingOut&);

// The frame at which each row begins on the monotonic path of the greatest sum of weights. As
// kvcast/runtimes/dtw.py finds it.
struct FirstFrames {
  int rows, frames;
  const float* weights;  // [rows, f]
  int64_t* out;          // [rows]
};
void first_frames(Machine&, const FirstFrames&);

// The probability of one token of each row, among some: what a product with the vocabulary's matrix and a softmax
// would give, of which nothing else is written.
struct TokenProbabilities {
  Matrix matrix;  // [vocabulary, k]
  int rows;
  Operand in;  // [rows, k]
  const int64_t* tokens;  // [rows], each one of those that count
  const float* among;     // [vocabulary]: 0 for tokens that count, -infinity for others
  float* out;             // [rows]
};
void token_probabilities(Machine&, const TokenProbabilities&);

}  // namespace kvcast
