// Operations of encoders of sound, whose inputs differ in length.
#pragma once
#include "instructions.hpp"
#include "machine.hpp"

namespace kvcast {

void rotate(Machine&, const Rotation&);
void group_norm(Machine&, const GroupNorm&);
void window_attention(Machine&, const WindowAttention&);
void softmax(Machine&, const SoftmaxWords&);

}  // namespace kvcast
