// Attention over caches, and without one; instructions.def describes each.
//
// Results do not depend on the number of threads, nor a row's on the other rows: sums over positions are
// taken in parts of a fixed size, merged in their order.
#pragma once
#include "machine.hpp"

namespace kvcast {

void self_attention(Machine&, const SelfAttention&);
void store(Machine&, const Storing&);
void cross_attention(Machine&, const CrossAttention&);
void whole_attention(Machine&, const WholeAttention&);

}  // namespace kvcast
