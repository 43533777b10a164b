// GEMM and GEMV of rows of activations with a packed matrix, and their ends.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

size_t packed_bytes(const Instructions&, Format, int outputs, int inputs);

// codes and scales as the format has them (scales null for F32), bias [n] (null: zeros) to tiles.
void pack(Machine&, Format, int outputs, int inputs, const void* codes, const float* scales, const float* bias,
          uint8_t* tiles);

// Row n of the matrix, as floats [k].
void unpack_row(const Instructions&, const Matrix&, int n, float* out);

// Bytes of `rows` rows of k inputs as int8, and their parts' addresses in `data`, aligned to 64.
size_t rounded_bytes(int rows, int inputs);
Rounded rounded(uint8_t* data, int rows, int inputs);

// x [rows, inputs] to int8.
void round_rows(Machine&, const float* x, size_t stride, int rows, int inputs, const Rounded& to);

// x W^T + bias, then the activation, then + residual. With a gate the matrix has two halves of n outputs, whole
// tiles each, and the activation of the first's results is multiplied with the second's. A row's result depends on
// that row alone, and not on the number of threads.
struct Product {
  Matrix matrix;
  int rows;
  const float* x;  // F32: [rows, k] with stride; otherwise null
  size_t stride;
  Rounded in;  // other formats
  Activation activation;
  bool gated;
  const float* residual;  // [rows, n]; may be out; null: none
  size_t residual_stride;
  float* out;  // [rows, n]; null: none
  size_t out_stride;
  const Rounded* to;  // [rows, n], the result as int8 as well; null: none
};
void multiply(Machine&, const Product&);

}  // namespace kvcast
