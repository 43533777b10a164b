// A head of an encoder as AVX-512 packs it, and the softmax between its two products; AMX reads the same heads.
#pragma once
#include "avx512/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {

constexpr int CHUNK = 256;  // positions whose scores are held at once: the scores of several queries fit into L1

// Values that vdpbf16ps multiplies at once, or FMA.
template <class Value>
constexpr int TOGETHER = sizeof(float) / sizeof(Value);

AVX512_BEGIN

// A packed head: int8 queries [t, D]; keys + 128 in parts of BLOCK positions [D / 4, BLOCK, 4], the operand of
// vpdpbusd; values, bf16 (uint16_t) [t / 2, D, 2] or floats [t, D]; then what is of each position [t]. D is the
// head's size, filled up to whole blocks with zeros, as are the positions: T.
template <class Value>
struct Int8Head {
  int positions, filled, width;  // t, T, D
  int8_t* query;
  uint8_t* key;
  Value* value;
  float *query_scale, *key_scale;  // that of a query times the products' scale and log2(e)
  int32_t* offset;                 // -128 * the sum of a query's codes, since keys are stored + 128

  INLINE Int8Head(uint8_t* packed, int t, int head_dim)
      : positions(t),
        filled((t + BLOCK - 1) / BLOCK * BLOCK),
        width((head_dim + BLOCK - 1) / BLOCK * BLOCK),
        query(reinterpret_cast<int8_t*>(packed)),
        key(reinterpret_cast<uint8_t*>(query + part())),
        value(reinterpret_cast<Value*>(key + part())),
        query_scale(reinterpret_cast<float*>(value + part())),
        key_scale(query_scale + filled),
        offset(reinterpret_cast<int32_t*>(key_scale + filled)) {}

  INLINE explicit Int8Head(const EncoderHead& of) : Int8Head(of.packed, of.positions, of.head_dim) {}

  INLINE size_t part() const { return static_cast<size_t>(filled) * width; }
  INLINE size_t bytes() const { return (2 + sizeof(Value)) * part() + 3 * sizeof(float) * filled; }
};

// 2^x to 8e-5 relative, which is less than a bf16 loses and scores of int8 do; 0 from -150 on.
INLINE __m512 exp2_roughly(__m512 x) {
  const __m512 rest = _mm512_sub_ps(x, _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  __m512 sum = _mm512_set1_ps(0.078024517f);
  for (float term : {0.22606716f, 0.69583354f, 0.99992522f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
  return _mm512_scalef_ps(sum, x);  // takes the floor
}

// As bf16. Not the intrinsic, which only functions may use that are for processors with BF16 alone.
INLINE __m256i narrowed(__m512 x) {
  __m256i halves;
  asm("vcvtneps2bf16 %1, %0" : "=v"(halves) : "v"(x));
  return halves;
}

INLINE void store(__m512 x, float* to) { _mm512_store_ps(to, x); }
INLINE void store(__m512 x, uint16_t* to) { _mm256_store_si256(reinterpret_cast<__m256i*>(to), narrowed(x)); }

// Scores times `scale` become shares, of `peak`; returns their sum.
template <class Value>
INLINE float share(const float* scores, int count, float scale, float peak, Value* shares) {
  const __m512 factor = _mm512_set1_ps(scale), least = _mm512_set1_ps(peak);
  __m512 sum = _mm512_setzero_ps();
  for (int i = 0; i < count; i += 16) {
    const __m512 x = exp2_roughly(_mm512_fmsub_ps(_mm512_load_ps(scores + i), factor, least));
    sum = _mm512_add_ps(sum, x);
    store(x, shares + i);
  }
  return _mm512_reduce_add_ps(sum);
}

AVX512_END

}  // namespace kvcast
#endif
