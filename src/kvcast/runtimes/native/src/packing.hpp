// Matrices packed straight from the rows of a file.
#pragma once
#include "machine.hpp"

namespace kvcast {

// Rows of values as stored in files: an address and an encoding for each, and what its values are multiplied by.
struct FileRows {
  const uint8_t* const* rows;
  const Encoding* encodings;
  const float* factors;  // null: ones
};

// Rows [outputs] of `inputs` values to tiles. With `own`, rows keep codes that the format can hold; without it, 4-bit
// codes in INT4_MIN and Q8_0's in INT8_BLOCK. Others are quantized; INT4_MIN searches codes. Formats that only files
// have take rows of one encoding, with such codes. bias [outputs], null: zeros.
void pack_rows(Machine&, Format, bool own, int outputs, int inputs, const FileRows&, const float* bias, uint8_t* tiles);

// Sets what `grid_of` returns, before the first row of the encoding is read; `points` stay where they are.
void set_grid(Encoding, const uint8_t* points);

}  // namespace kvcast
