// Products with AVX-512 VNNI.
#include "avx512.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

void round(const float* x, int count, const Rounded& to) {
  __m512 v[VECTORS], most = _mm512_setzero_ps();
  for (int z = 0; z < VECTORS; z++) {
    v[z] = _mm512_maskz_loadu_ps(first(count - 16 * z), x + 16 * z);
    most = _mm512_max_ps(most, _mm512_abs_ps(v[z]));
  }
  const float m = _mm512_reduce_max_ps(most);
  const bool is_zero = m < SMALLEST;
  const __m512 inverse = _mm512_set1_ps(is_zero ? 0.f : 127.f / m);
  __m512i sum = _mm512_setzero_si512();
  for (int z = 0; z < VECTORS; z++) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(v[z], inverse));
    sum = _mm512_add_epi32(sum, codes);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to.codes + 16 * z), _mm512_cvtepi32_epi8(codes));
  }
  *to.scales = is_zero ? 0.f : m / 127.f;
  *to.offsets = -128 * _mm512_reduce_add_epi32(sum);
}

// [k / 4, BLOCK, 4] codes + 128, the operand of vpdpbusd; then scales and bias.
size_t tile_bytes(int inputs) { return static_cast<size_t>(BLOCK) * inputs + 2 * BLOCK * sizeof(float); }

void pack(const int8_t* codes, const float* scales, const float* bias, int inputs, uint8_t* tile) {
  for (int k = 0; k < inputs; k++)
    for (int n = 0; n < BLOCK; n++)
      tile[k / 4 * 4 * BLOCK + n * 4 + k % 4] = static_cast<uint8_t>(codes[static_cast<size_t>(n) * inputs + k] + 128);
  float* after = reinterpret_cast<float*>(tile + static_cast<size_t>(BLOCK) * inputs);
  std::memcpy(after, scales, BLOCK * sizeof(float));
  std::memcpy(after + BLOCK, bias, BLOCK * sizeof(float));
}

// GCC 12 moves each sum to another register and back around the intrinsic, which halves the speed.
INLINE void dot(__m512i& sum, __m512i weights, __m512i codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
}

template <int ROWS>
INLINE void multiply_block(const uint8_t* weights, const int8_t* codes, size_t stride, __m512i sums[ROWS][VECTORS]) {
  for (int k = 0; k < BLOCK; k += 4, weights += 4 * BLOCK) {
    __m512i x[VECTORS];
    for (int z = 0; z < VECTORS; z++) x[z] = _mm512_loadu_si512(weights + z * 64);
    for (int m = 0; m < ROWS; m++) {
      int32_t four;
      std::memcpy(&four, codes + m * stride + k, 4);
      const __m512i y = _mm512_set1_epi32(four);
      for (int z = 0; z < VECTORS; z++) dot(sums[m][z], x[z], y);
    }
  }
}

template <int ROWS>
void multiply_rows(const uint8_t* tile, const Rounded& in, float* out) {
  const int blocks = in.inputs / BLOCK;
  // Totals lie in memory: with them the sums would not fit in the registers.
  for (int i = 0; i < ROWS * BLOCK; i += 16) _mm512_storeu_ps(out + i, _mm512_setzero_ps());
  for (int b = 0; b < blocks; b++, tile += BLOCK * BLOCK) {
    __m512i sums[ROWS][VECTORS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_set1_epi32(in.offsets[m * blocks + b]);
    multiply_block<ROWS>(tile, in.codes + b * BLOCK, in.inputs, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) {
        float* total = out + m * BLOCK + z * 16;
        const __m512 scale = _mm512_set1_ps(in.scales[m * blocks + b]);
        _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m][z]), scale, _mm512_loadu_ps(total)));
      }
  }
  const float *scales = reinterpret_cast<const float*>(tile), *bias = scales + BLOCK;
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < VECTORS; z++) {
      float* total = out + m * BLOCK + z * 16;
      _mm512_storeu_ps(total, _mm512_fmadd_ps(_mm512_loadu_ps(total), _mm512_loadu_ps(scales + z * 16),
                                              _mm512_loadu_ps(bias + z * 16)));
    }
}

using Multiply = void (*)(const uint8_t*, const Rounded&, float*);
constexpr Multiply MULTIPLY[MOST_ROWS] = {multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
                                          multiply_rows<4>, multiply_rows<5>, multiply_rows<6>};

void multiply(const uint8_t* tile, const Rounded& in, int rows, float* out) { MULTIPLY[rows - 1](tile, in, out); }

}  // namespace

AVX512_END

const Products avx512_products = {round, tile_bytes, pack, multiply};

}  // namespace kvcast
#endif
