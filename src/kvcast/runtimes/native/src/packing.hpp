// Matrices packed straight from the rows of a file.
#pragma once
#include "machine.hpp"

namespace kvcast {

// Rows of numbers as files hold them: an address and an encoding for each.
struct FileRows {
  const uint8_t* const* rows;
  const Encoding* encodings;
};

// Rows [outputs] of `inputs` numbers to tiles. In the format of 4 bits, rows that have such codes keep them, and for
// others codes are searched; in int8 of groups Q8_0 keeps its own. bias [outputs], null: zeros.
void pack_rows(Machine&, Format, int outputs, int inputs, const FileRows&, const float* bias, uint8_t* tiles);

}  // namespace kvcast
