// AVX2 with FMA and F16C: Intel from Haswell on, AMD from Excavator on.
#include "avx2.hpp"
#if defined(__x86_64__)
#include <cpuid.h>

namespace kvcast {
namespace {

// Not every compiler knows f16c by name here. That the system keeps the registers is known from AVX2.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

bool run_here() { return ALIGNED_STACK && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

}  // namespace

const Instructions avx2 = {"avx2", run_here, avx2_products, avx2_rows, avx2_attention, avx2_encoder_attention, avx2_scores};

}  // namespace kvcast
#endif
