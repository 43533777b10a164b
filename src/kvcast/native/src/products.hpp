// Products of rows of activations with a packed matrix, and what follows them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

// How a matrix [n, k] is stored in a bundle, and then packed in tiles of BLOCK outputs.
enum class Format : int32_t {
  F32 = 0,   // float [n, k]
  INT8 = 1,  // int8 [n, k], float scales [n]
};

struct Matrix {
  Format format;
  int outputs, inputs;
  const uint8_t* tiles;
};

size_t packed_bytes(const Instructions&, Format, int outputs, int inputs);

// codes [n, k] of the format, scales [n] (null for F32), bias [n] (null: zeros) to tiles.
void pack(Machine&, Format, int outputs, int inputs, const void* codes, const float* scales, const float* bias,
          uint8_t* tiles);

// Row n of the matrix, as floats [k].
void unpack_row(const Instructions&, const Matrix&, int n, float* out);

// Bytes of `rows` rows of k inputs as int8, and where their parts lie.
size_t rounded_bytes(int rows, int inputs);
Rounded rounded(uint8_t* data, int rows, int inputs);

// x [rows, inputs] to int8.
void round_rows(Machine&, const float* x, size_t stride, int rows, int inputs, const Rounded& to);

enum class Activation : int32_t { NONE = 0, GELU = 1, GELU_TANH = 2, SILU = 3, RELU = 4, TANH = 5 };

// x W^T + bias, then the activation, then + residual.
struct Product {
  Matrix matrix;
  int rows;
  const float* x;  // F32: [rows, k] with stride; otherwise null
  size_t stride;
  Rounded in;  // other formats
  Activation activation;
  const float* residual;  // [rows, n]; null: none
  size_t residual_stride;
  float* out;  // [rows, n]; null: none
  size_t out_stride;
  const Rounded* to;  // the result as int8 as well; null: none
};
void multiply(Machine&, const Product&);

}  // namespace kvcast
