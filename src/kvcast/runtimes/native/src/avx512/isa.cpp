// AVX-512 with VNNI (int8 products, an encoder's scores, prompts): Intel from Cascade Lake on, AMD from Zen 4 on. And the set
// that has BF16 as well (an encoder's shares; Intel from Cooper Lake on but for some, AMD from Zen 4 on).
#include "avx512/vec.hpp"
#if defined(__x86_64__)
#include "cpuid.hpp"
#include "halves.hpp"

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int IN_FLIGHT = 16;  // more than two units have in flight

double dot_int8(int64_t turns) {
  __m512i sums[IN_FLIGHT];
  const __m512i x = _mm512_set1_epi8(1);
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 16
    for (int i = 0; i < IN_FLIGHT; i++) asm volatile("vpdpbusd %1, %1, %0" : "+v"(sums[i]) : "v"(x));
  return 2. * 64 * IN_FLIGHT * turns;
}

double multiply_fp32(int64_t turns) {
  __m512 sums[IN_FLIGHT];
  const __m512 x = _mm512_set1_ps(1);
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 16
    for (int i = 0; i < IN_FLIGHT; i++) asm volatile("vfmadd231ps %1, %1, %0" : "+v"(sums[i]) : "v"(x));
  return 2. * 16 * IN_FLIGHT * turns;
}

INLINE void to_halves_and_back(float* x, int count) {
  for (int i = 0; i < count; i += 16) {
    const __mmask16 there = first(count - i);
    store(x + i, there, _mm512_cvtph_ps(_mm512_cvtps_ph(load(x + i, there), 0)));
  }
}

#include "vec/float_rows.hpp"

}  // namespace

AVX512_END

const Peaks avx512_peaks = {dot_int8, multiply_fp32};
const Rows avx512_rows = ROWS;
const Scores avx512_scores = SCORES_OF_ROWS;
const Reading avx512_reading = files::reading;

namespace {

bool runs_vnni() { return ALIGNED_STACK && x86().avx512_vnni; }
bool runs_bf16() { return runs_vnni() && x86().avx512_bf16; }

}  // namespace

const Instructions avx512_bf16 = {"avx512_bf16", "GEMM in AVX-512 VNNI; attention of prompts in int8, of encoders in int8 and bf16, of steps in fp32", runs_bf16, avx512_peaks, avx512_gemm, avx512_rows, avx512_attention,
                                  avx512_bf16_encoder_attention, avx512_scores, avx512_reading,
                                  &avx512_prompt_attention};
const Instructions avx512_vnni = {"avx512_vnni", "GEMM in AVX-512 VNNI; attention of prompts in int8, of encoders in int8 and fp32, of steps in fp32", runs_vnni, avx512_peaks, avx512_gemm, avx512_rows, avx512_attention,
                                  avx512_encoder_attention, avx512_scores, avx512_reading,
                                  &avx512_prompt_attention};

}  // namespace kvcast
#endif
