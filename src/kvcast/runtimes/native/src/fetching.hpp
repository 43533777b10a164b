// Memory that is asked for before it is read, where processors do not foresee enough by themselves. Measured on x86 alone.
#pragma once
#include <cstddef>

namespace kvcast {

constexpr int AHEAD = 8192, LINE = 64;  // bytes

// Asks for what lies AHEAD of some bytes to come to the second cache: the first one holds what is worked on. It may lie
// past the end of all memory.
inline __attribute__((always_inline)) void fetch_ahead(const void* from, size_t count) {
  constexpr int READ = 0, SECOND = 2;
  const char* ahead = static_cast<const char*>(from) + AHEAD;
  for (size_t line = 0; line < count; line += LINE) __builtin_prefetch(ahead + line, READ, SECOND);
}

}  // namespace kvcast
