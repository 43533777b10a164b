// AVX2 with FMA and F16C: Intel from Haswell on, AMD from Excavator on. And the set that has VNNI as well, for
// products of int8 and int4 (Intel from Alder Lake on, AMD from Zen 5 on).
#include "avx2/vec.hpp"
#if defined(__x86_64__)
#include "cpuid.hpp"

namespace kvcast {

AVX2_BEGIN

namespace {

constexpr int SUMS = 12;  // more than two units have in flight; three registers are left

double dot_int8(int64_t turns) {
  __m256i sums[SUMS];
  __m256i pairs = _mm256_setzero_si256();
  const __m256i x = _mm256_set1_epi8(1);
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++)
      asm volatile("vpmaddubsw %2, %2, %1\n vpmaddwd %1, %2, %1\n vpaddd %1, %0, %0" : "+x"(sums[i]), "=&x"(pairs) : "x"(x));
  return 2. * 32 * SUMS * turns;
}

double multiply_fp32(int64_t turns) {
  __m256 sums[SUMS];
  const __m256 x = _mm256_set1_ps(1);
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) asm volatile("vfmadd231ps %1, %1, %0" : "+x"(sums[i]) : "x"(x));
  return 2. * 8 * SUMS * turns;
}

#if defined(KVCAST_AVX_VNNI)
#if defined(KVCAST_EMULATE_AVX_VNNI)
#define DOT "vpdpbusd"
#else
#define DOT "%{vex%} vpdpbusd"
#endif
double dot_vnni(int64_t turns) {
  __m256i sums[SUMS];
  const __m256i x = _mm256_set1_epi8(1);
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) asm volatile(DOT " %1, %1, %0" : "+x"(sums[i]) : "x"(x));
  return 2. * 32 * SUMS * turns;
}
#endif

}  // namespace

AVX2_END

namespace {

const Peaks peaks = {dot_int8, multiply_fp32};
#if defined(KVCAST_AVX_VNNI)
const Peaks vnni_peaks = {dot_vnni, multiply_fp32};
#endif

bool runs_avx2() { return ALIGNED_STACK && x86().avx2; }

#if defined(KVCAST_EMULATE_AVX_VNNI)
bool runs_vnni() { return runs_avx2() && x86().avx512_vnni; }
#else
[[maybe_unused]] bool runs_vnni() { return runs_avx2() && x86().avx_vnni; }
#endif

}  // namespace

const Instructions avx2 = {"avx2", "products in AVX2 (pairs of 16 bits); attention in fp32", runs_avx2, peaks, avx2_products, avx2_rows, avx2_attention, avx2_encoder_attention, avx2_scores, avx2_reading};
#if defined(KVCAST_AVX_VNNI)
const Instructions avx2_vnni = {"avx2_vnni", "products in AVX-VNNI; attention in fp32", runs_vnni, vnni_peaks, avx2_vnni_products, avx2_rows, avx2_attention,
                                avx2_encoder_attention, avx2_scores, avx2_reading};
#endif

}  // namespace kvcast
#endif
