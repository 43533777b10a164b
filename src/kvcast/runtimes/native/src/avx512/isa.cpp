// AVX-512 with VNNI (int8 products, an encoder's scores, prompts): Intel from Cascade Lake on, AMD from Zen 4 on. And the set
// that has BF16 as well (an encoder's shares; Intel from Cooper Lake on but for some, AMD from Zen 4 on).
#include "avx512/vec.hpp"
#if defined(__x86_64__)
#include "cpuid.hpp"

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int SUMS = 16;  // more than two units have in flight

double dot_int8(int64_t turns) {
  __m512i sums[SUMS];
  const __m512i x = _mm512_set1_epi8(1);
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(x));
  return 2. * 64 * SUMS * turns;
}

double multiply_fp32(int64_t turns) {
  __m512 sums[SUMS];
  const __m512 x = _mm512_set1_ps(1);
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[i]) : "v"(x));
  return 2. * 16 * SUMS * turns;
}

}  // namespace

AVX512_END

const Peaks avx512_peaks = {dot_int8, multiply_fp32};

namespace {

bool runs_vnni() { return ALIGNED_STACK && x86().avx512_vnni; }
bool runs_bf16() { return runs_vnni() && x86().avx512_bf16; }

}  // namespace

const Instructions avx512_bf16 = {"avx512_bf16", "products in AVX-512 VNNI; attention of prompts in int8, of encoders in int8 and bf16, of steps in fp32", runs_bf16, avx512_peaks, avx512_products, avx512_rows, avx512_attention,
                                  avx512_bf16_encoder_attention, avx512_scores, avx512_reading,
                                  &avx512_prompt_attention};
const Instructions avx512_vnni = {"avx512_vnni", "products in AVX-512 VNNI; attention of prompts in int8, of encoders in int8 and fp32, of steps in fp32", runs_vnni, avx512_peaks, avx512_products, avx512_rows, avx512_attention,
                                  avx512_encoder_attention, avx512_scores, avx512_reading,
                                  &avx512_prompt_attention};

}  // namespace kvcast
#endif
