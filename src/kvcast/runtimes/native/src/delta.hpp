// The gated delta rule.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

// Positions follow one another, in a chunk as in steps, so the results are the same numbers.
void delta_rule(Machine&, const DeltaRule&);

}  // namespace kvcast
