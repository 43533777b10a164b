// Elementwise operations over strided arrays of up to four dimensions, and gathering along one of them.
#pragma once
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

enum class Dtype : int32_t { F32 = 0, F16 = 1, I32 = 2, I64 = 3, BOOL = 4 };

constexpr int DIMS = 4;

struct Array {
  void* data;
  Dtype dtype;
  int64_t strides[DIMS];  // in numbers; 0 where it is repeated
};

enum class Element : int32_t {
  COPY = 0,
  ADD = 1,
  SUB = 2,
  MUL = 3,
  DIV = 4,
  MAXIMUM = 5,
  MINIMUM = 6,
  LT = 7,
  GE = 8,
  EQ = 9,
  WHERE = 10,  // condition, then, else
  TANH = 11,
  GELU = 12,
  GELU_TANH = 13,
  SILU = 14,
  RELU = 15,
};

// out[i] = operation(inputs[...][i]) for every index below `sizes`. Floating-point where a result or an
// input other than WHERE's condition is, else in 64-bit integers. A float becomes the integer towards 0, the nearest
// there is; NaN becomes 0.
void elementwise(Machine&, Element operation, const int64_t sizes[DIMS], const Array& out, const Array* inputs,
                 int count);

// out[i, j, k] = in[i, index[j], k]; `strides` of in and out are of these three axes. An index past `limit`
// throws std::out_of_range.
struct Gather {
  int64_t sizes[3];
  const int64_t* index;
  int64_t limit;
  const float* in;
  int64_t in_strides[3];
  float* out;
  int64_t out_strides[3];
};
void gather(Machine&, const Gather&);

}  // namespace kvcast
