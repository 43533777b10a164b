// The interpreter: a program is a stream of instructions with all sizes, strides and addresses filled in.
//
// An instruction is its opcode, the count of words that follow, and these words: integers and addresses as they are,
// floats as the bits of a double. instructions.def has them all; Python writes them and program.cpp reads them by it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"
#include "gemm.hpp"

namespace kvcast {

// Runs `words` words; throws std::invalid_argument if they are no program.
void run_program(Machine&, const int64_t* program, size_t words);

// Attention over caches, and without one; instructions.def describes each.
//
// Results do not depend on the number of threads, nor a row's on the other rows: sums over positions are
// taken in parts of a fixed size, merged in their order.

void self_attention(Machine&, const SelfAttention&);
void store(Machine&, const Storing&);
void cross_attention(Machine&, const CrossAttention&);
void whole_attention(Machine&, const WholeAttention&);
void multiply_heads(Machine&, const HeadProducts&);
void select_positions(Machine&, const PositionSelection&);
void latent_attention(Machine&, const LatentAttention&);
void expanded_attention(Machine&, const ExpandedAttention&);

// Convolutions of each channel by itself: with its last inputs, and with its neighbours.

// Sums have the same order in a chunk as in steps.
void short_convolution(Machine&, const ShortConvolution&);

void channel_convolution(Machine&, const ChannelConvolution&);

// Matrices that every position rewrites: the gated delta rule and the selective scan.

// Positions are computed in sequence, in a chunk as in steps, so the results are bit-identical.
void rewrite_states(Machine&, const RewriteStates&);

// Likewise each channel's state.
void gated_recurrence(Machine&, const GatedRecurrence&);

// Elementwise operations over strided arrays of up to four dimensions, and gathering along one of them.

// out[i] = operation(inputs[...][i]) for every index below `sizes`. Floating-point where a result or an
// input other than WHERE's condition is, else in 64-bit integers. A float becomes the integer towards 0, the nearest
// there is; NaN becomes 0.
void elementwise(Machine&, Element operation, const int64_t sizes[DIMS], const Array& out, const Array* inputs,
                 int count);

// An index past the limit throws std::out_of_range.
void gather(Machine&, const Gather&);

// Scores of attention that depend on how far apart positions are.

void relative_scores(Machine&, const RelativeScores&);

// Operations of audio encoders, whose inputs differ in length.

void rotate(Machine&, const Rotation&);
void group_norm(Machine&, const GroupNorm&);
void window_attention(Machine&, const WindowAttention&);
void softmax(Machine&, const SoftmaxWords&);
void moments(Machine&, const MomentsWords&);

// A mixture of experts: each token goes through the few that its router scores highest.

inline Matrix matrix_of(const Stack& stack, int expert) {
  const auto tiles = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(stack.tiles[expert]));
  return {stack.format, stack.outputs, stack.inputs, tiles};
}

// kvcast::mixture_of_experts: x through gate and up, the gate's activation times up, and down; times the
// experts' shares, summed from the one chosen first on. Of equal experts or groups the first is taken. Experts that no
// token chose are not read. A token's result depends on that token alone.
struct Mixture {
  int tokens, experts, each;  // each: how many a token goes through
  const float* logits;        // [tokens, experts]
  size_t logits_stride;
  const float* x;  // F32: [tokens, k] with stride; otherwise null
  size_t stride;
  Rounded in;  // other formats
  Stack gate_up;  // [2 * inner, k], gate above up
  Stack down;     // [k, inner]
  Activation activation;
  Routing routing;
  float alpha, limit;  // above 0: gates up to the limit, times a sigmoid of alpha times them; up within it, and 1 more
  const float* gate_up_bias;  // [experts, 2 * inner]; null: none
  const float* down_bias;     // [experts, k]; null: none
  float* out;  // [tokens, k]
  size_t out_stride;
};
void mix_experts(Machine&, const Mixture&);

// Shares are the softmax over the logits of the experts with the highest ones.
constexpr Routing OF_CHOSEN = {false, true, 1, 1, 1, 0, 1, nullptr, nullptr};

// How tokens attend to speech, for their places in time, and how likely they were; instructions.def describes each.

void alignment_scores(Machine&, const AlignmentScores&);
void attention_by_token(Machine&, const AttentionByToken&);
void dtw(Machine&, const Dtw&);

// The probability of one token of each row: the GEMM with the vocabulary's matrix and the softmax, fused, without
// storing logits.
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
