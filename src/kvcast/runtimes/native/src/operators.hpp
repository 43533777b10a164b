// Operators that programs compiled by others call, on threads of their own.
//
// Such a program holds no address: a packed matrix comes to it as an array of 8 words, which is filled in when
// the program is opened. kvcast/runtimes/aoti/packing.py declares the same structures.
#pragma once
#include <cstdint>

#include "kernels.hpp"
#include "threads.hpp"

extern "C" {

struct kvcast_matrix;

struct kvcast_operators {
  // x [rows, inputs], rows `stride` elements apart, times the matrix, plus its bias: out [rows, outputs].
  int (*multiply)(const kvcast_matrix*, const float* x, int64_t stride, int64_t rows, float* out,
                  const kvcast::Lent*);

  // Rows of the matrix: out [count, inputs].
  int (*look_up)(const kvcast_matrix*, const int64_t* ids, int64_t count, float* out);

  // kvcast::mixture_of_experts: x [rows, inputs] through `each` of the experts, by logits [rows, experts].
  int (*mix)(const kvcast_matrix* gate_up, const kvcast_matrix* down, const float* x, int64_t stride, int64_t rows,
             const float* logits, int64_t logits_stride, int64_t each, float* out, const kvcast::Lent*);
};  // 0, or 1 for impossible calls

struct kvcast_matrix {
  int64_t version;
  const kvcast_operators* call;
  const kvcast::Instructions* with;
  int64_t format, outputs, inputs;
  int64_t count;      // of experts; 1 for a matrix
  const void* tiles;  // of experts: the addresses of their tiles
};

}  // extern "C"

namespace kvcast {

constexpr int64_t OPERATORS_VERSION = 1;  // of these structures
extern const kvcast_operators operators;

}  // namespace kvcast
