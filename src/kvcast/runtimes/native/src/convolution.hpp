// The convolution of each channel with its last inputs.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

// Sums have the same order in a chunk as in steps.
void short_convolution(Machine&, const ShortConvolution&);

}  // namespace kvcast
