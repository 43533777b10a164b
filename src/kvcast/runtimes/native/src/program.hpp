// The interpreter: a program is a stream of instructions with all sizes, strides and addresses filled in.
//
// An instruction is its number, how many words follow, and these words: integers and addresses as they are,
// floats as the bits of a double. instructions.def has them all; Python writes them and program.cpp reads them by it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "machine.hpp"

namespace kvcast {

// Runs `words` words; throws std::invalid_argument if they are no program.
void run_program(Machine&, const int64_t* program, size_t words);

}  // namespace kvcast
