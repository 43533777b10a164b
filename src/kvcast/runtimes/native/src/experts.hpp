// A mixture of experts: each token goes through the few that its router scores highest.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"
#include "products.hpp"

namespace kvcast {

inline Matrix matrix_of(const Stack& stack, int expert) {
  const auto tiles = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(stack.tiles[expert]));
  return {stack.format, stack.outputs, stack.inputs, tiles};
}

// kvcast::mixture_of_experts: x through gate and up, the gate's activation times up, and down; times the
// softmax over the logits of the experts that were chosen, or of all, summed from the highest on. Of equally high ones
// the first is taken. Experts that no token chose are not read. A token's result depends on that token alone.
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
  bool shares_of_all;  // the softmax is over all experts' logits
  float alpha, limit;  // above 0: gates up to the limit, times a sigmoid of alpha times them; up within it, and 1 more
  const float* gate_up_bias;  // [experts, 2 * inner]; null: none
  const float* down_bias;     // [experts, k]; null: none
  const float* scales;        // [experts], factors on shares; null: none
  float* out;  // [tokens, k]
  size_t out_stride;
};
void mix_experts(Machine&, const Mixture&);

}  // namespace kvcast
