// How tokens attend to speech, for their places in time, and how likely they were; instructions.def describes each.
#pragma once
#include "attention.hpp"
#include "products.hpp"

namespace kvcast {

void alignment_scores(Machine&, const AlignmentScores&);
void attention_by_token(Machine&, const AttentionByToken&);
void dtw(Machine&, const Dtw&);

// The probability of one token of each row, among some: what a product with the vocabulary's matrix and a softmax
// would give, of which nothing else is written.
struct TokenProbabilities {
  Matrix matrix;  // [vocabulary, k]
  int rows;
  Operand in;  // [rows, k]
  const int64_t* tokens;  // [rows], each with a 0 in `among`
  const float* among;     // [vocabulary]: 0 for tokens that count, -infinity for others
  float* out;             // [rows]
};
void token_probabilities(Machine&, const TokenProbabilities&);

}  // namespace kvcast
