// AVX2 with FMA and F16C: Intel from Haswell on, AMD from Excavator on. And the set that has VNNI as well, for
// products of int8 and int4 (Intel from Alder Lake on, AMD from Zen 5 on).
#include "avx2/vec.hpp"
#if defined(__x86_64__)
#include "cpuid.hpp"
#include "halves.hpp"

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

constexpr int IN_FLIGHT = 12;  // more than two units have in flight; three registers are left

double dot_int8(int64_t turns) {
  __m256i sums[IN_FLIGHT];
  __m256i pairs = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(1);
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < IN_FLIGHT; i++)
      asm volatile("vpmaddubsw %2, %2, %1\n vpmaddwd %1, %2, %1\n vpaddd %1, %0, %0" : "+x"(sums[i]), "=&x"(pairs) : "x"(x));
  return 2. * 32 * IN_FLIGHT * turns;
}

double multiply_fp32(int64_t turns) {
  __m256 sums[IN_FLIGHT];
  const __m256 x = _mm256_set1_ps(1);
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < IN_FLIGHT; i++) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[i]) : "x"(x));
  return 2. * 8 * IN_FLIGHT * turns;
}

#if defined(KVCAST_AVX_VNNI)
#if defined(KVCAST_EMULATE_AVX_VNNI)
#define DOT "vpdpbusd"
#else
#define DOT "%{vex%} vpdpbusd"
#endif
double dot_vnni(int64_t turns) {
  __m256i sums[IN_FLIGHT];
  const __m256i x = _mm256_set1_epi8(1);
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < IN_FLIGHT; i++) asm volatile(DOT " %1, %1, %0" : "+x"(sums[i]) : "x"(x));
  return 2. * 32 * IN_FLIGHT * turns;
}
#endif

INLINE void to_halves_and_back(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] = _cvtsh_ss(_cvtss_sh(x[i], 0));
}

#include "vec/float_rows.hpp"
#include "vec/encoder_attention.hpp"

}  // namespace

AVX2_END

namespace {

const Peaks avx2_peaks = {dot_int8, multiply_fp32};
#if defined(KVCAST_AVX_VNNI)
const Peaks avx2_vnni_peaks = {dot_vnni, multiply_fp32};
#endif

bool runs_avx2() { return ALIGNED_STACK && x86().avx2; }

#if defined(KVCAST_EMULATE_AVX_VNNI)
bool runs_vnni() { return runs_avx2() && x86().avx512_vnni; }
#else
[[maybe_unused]] bool runs_vnni() { return runs_avx2() && x86().avx_vnni; }
#endif

}  // namespace
}  // namespace with_avx2

using namespace with_avx2;

const Instructions avx2 = {"avx2", "GEMM in AVX2 (pairs of 16 bits); attention in fp32", runs_avx2, avx2_peaks, avx2_gemm, ROWS, avx2_attention, ENCODER_ATTENTION, SCORES_OF_ROWS, files::reading};
#if defined(KVCAST_AVX_VNNI)
const Instructions avx2_vnni = {"avx2_vnni", "GEMM in AVX-VNNI; attention in fp32", runs_vnni, avx2_vnni_peaks, avx2_vnni_gemm, ROWS, avx2_attention,
                                ENCODER_ATTENTION, SCORES_OF_ROWS, files::reading};
#endif

}  // namespace kvcast
#endif
