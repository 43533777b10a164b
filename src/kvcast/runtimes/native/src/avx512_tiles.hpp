// How tiles of int8 and int4 lie for AVX-512: two halves of 32 outputs each, one after the other. Four codes of
// an output lie together, which is how vpdpbusd wants its operand, and AMX as well.
//
// INT8: [2, k / 4, HALF, 4] codes + 128; then scales and bias.
// INT8_BLOCK, INT4_MIN: [2, k / GROUP] of a group's scales (halves [HALF]), its least values likewise (INT4_MIN)
// and its codes; then bias. Codes of INT8_BLOCK are + 128 [GROUP / 4, HALF, 4]; of INT4_MIN [GROUP / 8, HALF, 4]:
// input k of the group in the low half of a byte, k + GROUP / 2 in the high one.
#pragma once
#include "avx512.hpp"
#if defined(__x86_64__)

namespace kvcast {

constexpr int HALF = BLOCK / 2;
constexpr int PAIR = HALF / 16;  // vectors of a half

// Bytes of a group of a half.
constexpr size_t HALVES = HALF * sizeof(uint16_t);  // its scales
constexpr size_t INT8_GROUP = HALVES + GROUP * HALF;
constexpr size_t INT4_GROUP = 2 * HALVES + GROUP * HALF / 2;

AVX512_BEGIN

INLINE __m512 halves(const uint8_t* at) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
}

AVX512_END

}  // namespace kvcast
#endif
