// Scores of attention that depend on how far apart positions are.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

void relative_scores(Machine&, const RelativeScores&);

}  // namespace kvcast
