// Attention over caches, and without one. Letters in shapes: r rows, s new positions, h heads, g heads of
// keys (h is a multiple of it), d head, c capacity, b inputs, t positions of an input.
//
// Results do not depend on the number of threads, nor a row's on the other rows: sums over positions are
// taken in parts of a fixed size, merged in their order.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

// [n, heads, positions, d]: positions and d are contiguous.
struct Heads {
  void* data;
  Number number;
  size_t stride;       // numbers from one n to the next, of INT8 bytes
  size_t head_stride;  // likewise from one head to the next
};

// Rows of activations: [n, width] with a stride in numbers.
struct Flat {
  float* data;
  size_t stride;
};

// [n or 1, h or 1, s, positions], added to the scaled products; strides in numbers, 0 where there is one;
// positions are contiguous.
struct Bias {
  const float* data;  // null: none
  size_t stride, head_stride, query_stride;
};

// kvcast::self_attention in kvcast/models/ops/attention.py: rotate, write into the cache, attend.
struct SelfAttention {
  int rows, new_positions, heads, key_heads, head_dim, capacity;
  Flat query, key, value;  // of position s of row r: line r * new_positions + s
  Heads key_cache, value_cache;
  const int32_t* lengths;  // [r], positions before this call
  float scale, softcap;    // softcap 0: none
  int window;              // 0: all; else the cache is a ring of `capacity` slots
  bool causal;
  const float *cosines, *sines;  // [positions, d / 2]; null: no rotation
  Bias bias;                     // for linear caches only
  Flat out;                      // [r * s, h * d]
};
void self_attention(Machine&, const SelfAttention&);

// x [n, heads, positions, d] as lines of a cache; strides in numbers, d is contiguous.
struct Storing {
  int count, heads, positions, head_dim;
  const float* x;
  size_t stride, head_stride, position_stride;
  Heads to;
};
void store(Machine&, const Storing&);

// kvcast::cross_attention: several rows may read one input.
struct CrossAttention {
  int inputs, queries_each, heads, head_dim, positions;  // queries_each: rows of an input x new positions
  Flat query;  // line i reads input i / queries_each
  Heads key, value;
  const int32_t* lengths;  // [b], how many positions are valid; null: all
  float scale;
  Bias bias;  // [r, h, s, t], new_positions of a row one after the other
  int new_positions;
  Flat out;
};
void cross_attention(Machine&, const CrossAttention&);

// kvcast::encoder_attention: every position sees all of its input.
struct WholeAttention {
  int inputs, positions, heads, head_dim;
  Flat query, key, value;  // of position t of input b: line b * positions + t
  const int32_t* lengths;  // [b]; null: all. The results for positions past it are meaningless.
  float scale;
  Bias bias;  // [b or 1, h, t, t]
  bool exact;  // fp32 throughout; else int8 and bf16 where that is faster
  Flat out;
};
void whole_attention(Machine&, const WholeAttention&);

}  // namespace kvcast
