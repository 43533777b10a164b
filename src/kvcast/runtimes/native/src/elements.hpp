// Elementwise operations over strided arrays of up to four dimensions, and gathering along one of them.
#pragma once
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

// out[i] = operation(inputs[...][i]) for every index below `sizes`. Floating-point where a result or an
// input other than WHERE's condition is, else in 64-bit integers. A float becomes the integer towards 0, the nearest
// there is; NaN becomes 0.
void elementwise(Machine&, Element operation, const int64_t sizes[DIMS], const Array& out, const Array* inputs,
                 int count);

// An index past the limit throws std::out_of_range.
void gather(Machine&, const Gather&);

}  // namespace kvcast
