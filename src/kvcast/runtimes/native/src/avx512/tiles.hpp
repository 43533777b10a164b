// Layout of int8 and int4 tiles for AVX-512: two halves of 32 outputs each. Four codes of an output are adjacent, as
// vpdpbusd and AMX expect their operand.
//
// INT8 is [2, k / 4, HALF, 4] codes + 128; then scales and bias. strips.hpp has the formats of groups.
#pragma once
#include "avx512/vec.hpp"
#include "halves.hpp"
#if defined(__x86_64__)

namespace kvcast {

constexpr int HALF = BLOCK / 2;
constexpr int PAIR = HALF / 16;  // vectors of a half
constexpr int QUADS = 4 * HALF;  // bytes of four codes of each output

AVX512_BEGIN

namespace {

constexpr int STRIP = HALF, FLOATS = BLOCK, SIDE = 4, LANES = 16;
constexpr uint8_t SIGNS = 0x80;

INLINE Vector halves(const uint8_t* at, int z) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 2 * LANES * z)));
}
INLINE __m128i load_bytes(const uint8_t* at, int z) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + LANES * z)); }
INLINE Vector bytes(const uint8_t* at, int z) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_bytes(at, z))); }
INLINE Vector signed_bytes(const uint8_t* at, int z) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(at, z))); }

#include "vec/strips.hpp"

// The codes of one of four quarters (SIXES), of which `low` has the nibbles of two and `high` the other bits.
template <int QUARTER_OF_BLOCK>
INLINE __m512i sixes(__m512i low, __m512i high) {
  const __m512i nibbles = QUARTER_OF_BLOCK % 2 ? _mm512_srli_epi16(low, 4) : low;
  const __m512i bits = QUARTER_OF_BLOCK == 2 ? high : _mm512_rol_epi32(high, (4 - 2 * QUARTER_OF_BLOCK) & 31);
  return _mm512_or_si512(_mm512_and_si512(nibbles, _mm512_set1_epi8(15)), _mm512_and_si512(bits, _mm512_set1_epi8(0x30)));
}

}  // namespace

AVX512_END

}  // namespace kvcast
#endif
