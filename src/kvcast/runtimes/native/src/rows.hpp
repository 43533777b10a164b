// Rows of activations between products: norms and gates, as floats and rounded.
//
// Rows are shared by the threads in parts that are worth it: a few rows are done by the caller alone.
#pragma once
#include <algorithm>
#include <cstddef>

#include "machine.hpp"
#include "gemm.hpp"

namespace kvcast {

constexpr int NUMBERS_AT_ONCE = 8192;  // some microseconds

// Calls work(m) for each row below `rows` of `width` values.
template <class Work>
void for_rows(Machine& machine, int rows, int width, Work&& work) {
  const int at_once = std::max(1, NUMBERS_AT_ONCE / std::max(1, width));
  if (rows <= at_once) {
    for (int m = 0; m < rows; m++) work(m);
    return;
  }
  machine.threads.run(parts(rows, at_once), [&](int part) {
    for (int m = part * at_once; m < std::min((part + 1) * at_once, rows); m++) work(m);
  });
}

// x [width] to a row of int8.
void round_row(const Instructions&, const float* x, int width, const Rounded& to);

// Rows of an operation: x [rows, width] with a stride. `out` or `to` may be null, and `out` may be x.
struct RowRange {
  const float* x;
  size_t stride;
  int rows, width;
  float* out;
  size_t out_stride;
  const Rounded* to;
};

// Gain and bias [width] may be null.
void layer_norm(Machine&, const RowRange&, const float* gain, const float* bias, float epsilon);
void rms_norm(Machine&, const RowRange&, const float* gain, float epsilon);

// activation(gate) * up.
void gated(Machine&, const RowRange& gate, const float* up, size_t up_stride, Activation);

}  // namespace kvcast
