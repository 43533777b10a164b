// Convolutions of each channel by itself: with its last inputs, and with its neighbours.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

// Sums have the same order in a chunk as in steps.
void short_convolution(Machine&, const ShortConvolution&);

void channel_convolution(Machine&, const ChannelConvolution&);

}  // namespace kvcast
