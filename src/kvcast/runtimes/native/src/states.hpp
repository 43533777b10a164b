// Matrices that every position rewrites: the gated delta rule and the selective scan.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

// Positions follow one another, in a chunk as in steps, so the results are the same numbers.
void rewrite_states(Machine&, const RewriteStates&);

}  // namespace kvcast
