// What the programs that drive the library in C++ share.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels.hpp"

#define CHECK(met)                                                        \
  do {                                                                    \
    if (!(met)) {                                                         \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #met);      \
      std::_Exit(1);                                                      \
    }                                                                     \
  } while (0)

using Random = std::mt19937;

inline int below(Random& random, int n) { return static_cast<int>(random() % n); }

// -1 .. 1
inline float number(Random& random) { return static_cast<float>(below(random, 2001) - 1000) / 1000.f; }

// The instruction sets that run here, or are emulated, plain first.
inline std::vector<const kvcast::Instructions*> sets() {
  const kvcast::Instructions* const all[] = {
      &kvcast::plain,
#if defined(__x86_64__)
      &kvcast::avx2,
#endif
#if defined(KVCAST_AVX_VNNI)
      &kvcast::avx2_vnni,
#endif
#if defined(__x86_64__)
      &kvcast::avx512_vnni,
      &kvcast::avx512_bf16,
#endif
#if defined(KVCAST_AMX)
      &kvcast::amx,
#endif
#if defined(__AARCH64EL__)
      &kvcast::neon,
      &kvcast::neon_i8mm,
#endif
  };
  std::vector<const kvcast::Instructions*> found;
  for (const auto* one : all)
    if (one->run_here()) found.push_back(one);
  return found;
}
