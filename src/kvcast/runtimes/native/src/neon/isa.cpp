// NEON with dot products (ARMv8.2 and later: Apple M1, Graviton 2, Cortex-A76 on), and the set that has products
// of matrices of int8 as well (i8mm; Apple M2, Graviton 3). They differ in products of several rows alone.
#include "neon/vec.hpp"
#include "plain/plain.hpp"
#if defined(__AARCH64EL__)
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace kvcast {
namespace with_neon {
namespace {

#include "vec/rows.hpp"
#include "vec/encoder_attention.hpp"

#if defined(__linux__)
// Of asm/hwcap.h, where older systems lack the second.
bool has_dot_products() { return getauxval(AT_HWCAP) >> 20 & 1; }
bool has_i8mm() { return getauxval(AT_HWCAP2) >> 13 & 1; }
#elif defined(__APPLE__)
bool has(const char* feature) {
  int there = 0;
  size_t size = sizeof there;
  return sysctlbyname(feature, &there, &size, nullptr, 0) == 0 && there;
}
bool has_dot_products() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dot_products() { return false; }
bool has_i8mm() { return false; }
#endif

bool runs_with_i8mm() { return has_dot_products() && has_i8mm(); }

}  // namespace
}  // namespace with_neon

using namespace with_neon;

const Instructions neon = {"neon", "GEMM in dot products of NEON; attention in fp32", has_dot_products, neon_peaks, neon_gemm, ROWS, neon_attention, ENCODER_ATTENTION, plain_scores, plain_reading};
const Instructions neon_i8mm = {"neon_i8mm", "GEMM in i8mm, of one row in dot products; attention in fp32", runs_with_i8mm, neon_i8mm_peaks, neon_i8mm_gemm,
                                ROWS,   neon_attention, ENCODER_ATTENTION, plain_scores, plain_reading};

}  // namespace kvcast
#endif
