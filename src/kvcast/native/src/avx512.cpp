// AVX-512 with VNNI (int8 products) and BF16 (attention): Intel from Cooper Lake on, AMD from Zen 4 on.
#include "kernels.hpp"
#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#define INLINE inline __attribute__((always_inline))

namespace kvcast {
namespace {

constexpr float LOG2_E = 1.44269504f;
constexpr int VECTORS = BLOCK / 16;
constexpr int CHUNK = 256;  // positions whose scores are held at once: 6 x 256 lie in the first cache

bool run_here() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16");
}

// 2^x to 2e-7 relative; far below 0 nearly 0. Cephes' exp2f, six terms.
INLINE __m512 exp2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.f));
  const __m512 whole = _mm512_roundscale_ps(x, 0), rest = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.3333558e-3f);
  for (float term : {9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(term));
  return _mm512_scalef_ps(sum, whole);
}

void round(const float* x, const Rounded& to) {
  __m512 v[VECTORS], most = _mm512_setzero_ps();
  for (int z = 0; z < VECTORS; z++) {
    v[z] = _mm512_loadu_ps(x + 16 * z);
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

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  __m512 sum = _mm512_setzero_ps(), squares = sum;
  for (int i = 0; i < width; i += 16) sum = _mm512_add_ps(sum, _mm512_loadu_ps(x + i));
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum) / width);
  for (int i = 0; i < width; i += 16) {
    const __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + i), mean);
    squares = _mm512_fmadd_ps(d, d, squares);
  }
  const __m512 factor = _mm512_set1_ps(1 / std::sqrt(_mm512_reduce_add_ps(squares) / width + epsilon));
  for (int i = 0; i < width; i += 16) {
    const __m512 d = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + i), mean), factor);
    _mm512_storeu_ps(out + i, _mm512_fmadd_ps(d, _mm512_loadu_ps(gain + i), _mm512_loadu_ps(bias + i)));
  }
}

// x * Phi(x), where erf is Abramowitz and Stegun's 7.1.26, to 1.5e-7.
void gelu(float* to, int count) {
  for (int i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(to + i), one = _mm512_set1_ps(1.f);
    const __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
    const __m512 t = _mm512_div_ps(one, _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), one));
    __m512 sum = _mm512_set1_ps(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
      sum = _mm512_fmadd_ps(sum, t, _mm512_set1_ps(term));
    const __m512 power = exp2(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-LOG2_E)));
    const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(sum, t), _mm512_mul_ps(power, _mm512_set1_ps(0.5f)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 phi = _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, tail), tail);
    _mm512_storeu_ps(to + i, _mm512_mul_ps(x, phi));
  }
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

// A head: bf16 queries [t, D], times scale and log2(e); keys in parts of BLOCK positions
// [D / 2, BLOCK, 2]; values [t / 2, D, 2]. D is the head's size, filled up to whole blocks with zeros,
// as are the positions: T.
struct Head {
  int positions, filled, width;  // t, T, D
  uint16_t *query, *key, *value;

  Head(const uint8_t* head, int t, int head_dim)
      : positions(t),
        filled((t + BLOCK - 1) / BLOCK * BLOCK),
        width((head_dim + BLOCK - 1) / BLOCK * BLOCK),
        query(reinterpret_cast<uint16_t*>(const_cast<uint8_t*>(head))),
        key(query + part()),
        value(key + part()) {}

  size_t part() const { return static_cast<size_t>(filled) * width; }
};

size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(uint16_t) * Head(nullptr, positions, head_dim).part(); }

// 16 numbers of a head from x; zeros past its end.
INLINE __m256i narrowed(const float* x, int left, float factor) {
  const __mmask16 there = left >= 16 ? 0xffff : left > 0 ? static_cast<__mmask16>((1u << left) - 1) : 0;
  return (__m256i)_mm512_cvtneps_pbh(_mm512_mul_ps(_mm512_maskz_loadu_ps(there, x), _mm512_set1_ps(factor)));
}

void pack_head(const float* query, const float* key, const float* value, size_t stride, int positions, int head_dim,
               float scale, int first, uint8_t* to) {
  const Head head(to, positions, head_dim);
  const int width = head.width;
  alignas(64) uint16_t k16[16], v16[16];
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < positions ? head_dim : 0;
    const size_t from = t < positions ? t * stride : 0;
    for (int d = 0; d < width; d += 16) {
      const auto store = [](uint16_t* at, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); };
      store(head.query + static_cast<size_t>(t) * width + d, narrowed(query + from + d, there - d, scale * LOG2_E));
      store(k16, narrowed(key + from + d, there - d, 1.f));
      store(v16, narrowed(value + from + d, there - d, 1.f));
      uint16_t* keys = head.key + static_cast<size_t>(first) * width + (t - first) * 2;
      uint16_t* values = head.value + static_cast<size_t>(t / 2 * 2) * width + t % 2;
      for (int i = 0; i < 16; i++) {
        keys[(d + i) / 2 * 2 * BLOCK + i % 2] = k16[i];
        values[(d + i) * 2] = v16[i];
      }
    }
  }
}

// sums += a [ROWS, k] x w [k / 2, BLOCK, 2], rows of w `step` numbers apart.
template <int ROWS>
INLINE void multiply_bf16(const uint16_t* w, size_t step, int inputs, const uint16_t* a, size_t stride,
                          __m512 sums[ROWS][VECTORS]) {
  for (int k = 0; k < inputs; k += 2, w += step) {
    __m512bh x[VECTORS];
    for (int z = 0; z < VECTORS; z++) x[z] = (__m512bh)_mm512_loadu_si512(w + z * 32);
    for (int m = 0; m < ROWS; m++) {
      int32_t two;
      std::memcpy(&two, a + m * stride + k, 4);
      const __m512bh y = (__m512bh)_mm512_set1_epi32(two);
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_dpbf16_ps(sums[m][z], x[z], y);
    }
  }
}

// Scores of CHUNK positions at most; from `last` on -inf.
template <int ROWS>
INLINE void score(const Head& head, const uint16_t* query, int begin, int end, float scores[ROWS][CHUNK]) {
  for (int t = begin; t < end; t += BLOCK) {
    __m512 sums[ROWS][VECTORS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_setzero_ps();
    multiply_bf16<ROWS>(head.key + static_cast<size_t>(t) * head.width, 2 * BLOCK, head.width, query, head.width, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < VECTORS; z++) _mm512_store_ps(&scores[m][t - begin + z * 16], sums[m][z]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int t = head.positions; t < end; t++) scores[m][t - begin] = -INFINITY;
}

// The softmax so far of one query.
struct Softmax {
  float most = -INFINITY, total = 0;

  // Scores become shares; returns the factor on what was summed before.
  INLINE float take(const float* scores, int count, uint16_t* shares) {
    __m512 x = _mm512_load_ps(scores);
    for (int i = 16; i < count; i += 16) x = _mm512_max_ps(x, _mm512_load_ps(scores + i));
    const float next = std::max(most, _mm512_reduce_max_ps(x)), kept = std::exp2(most - next);
    const __m512 peak = _mm512_set1_ps(next);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i += 16) {
      const __m512 share = exp2(_mm512_sub_ps(_mm512_load_ps(scores + i), peak));
      sum = _mm512_add_ps(sum, share);
      _mm256_store_si256(reinterpret_cast<__m256i*>(shares + i), (__m256i)_mm512_cvtneps_pbh(share));
    }
    total = total * kept + _mm512_reduce_add_ps(sum);
    most = next;
    return kept;
  }
};

template <int ROWS>
void attend_rows(const Head& head, int head_dim, int first, float* out, size_t stride) {
  alignas(64) float scores[ROWS][CHUNK];
  alignas(64) uint16_t shares[ROWS][CHUNK];
  Softmax softmax[ROWS];
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    score<ROWS>(head, head.query + static_cast<size_t>(first) * head.width, begin, end, scores);
    float kept[ROWS];
    for (int m = 0; m < ROWS; m++) kept[m] = softmax[m].take(scores[m], end - begin, shares[m]);
    for (int d = 0; d < head_dim; d += BLOCK) {
      __mmask16 there[VECTORS];
      for (int z = 0; z < VECTORS; z++) {
        const int left = head_dim - d - z * 16;
        there[z] = left >= 16 ? 0xffff : left > 0 ? static_cast<__mmask16>((1u << left) - 1) : 0;
      }
      __m512 sums[ROWS][VECTORS];
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < VECTORS; z++)
          sums[m][z] = begin ? _mm512_mul_ps(_mm512_maskz_loadu_ps(there[z], out + m * stride + d + z * 16),
                                             _mm512_set1_ps(kept[m]))
                             : _mm512_setzero_ps();
      multiply_bf16<ROWS>(head.value + static_cast<size_t>(begin) * head.width + d * 2, 2 * head.width, end - begin,
                          shares[0], CHUNK, sums);
      for (int m = 0; m < ROWS; m++) {
        const __m512 factor = _mm512_set1_ps(end == head.filled ? 1 / softmax[m].total : 1.f);
        for (int z = 0; z < VECTORS; z++)
          _mm512_mask_storeu_ps(out + m * stride + d + z * 16, there[z], _mm512_mul_ps(sums[m][z], factor));
      }
    }
  }
}

void attend(const uint8_t* packed, int positions, int head_dim, int first, int last, float* out, size_t stride) {
  const Head head(packed, positions, head_dim);
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6>(head, head_dim, s, out + s * stride, stride);
  for (; s < last; s++) attend_rows<1>(head, head_dim, s, out + s * stride, stride);
}

}  // namespace

const Instructions avx512 = {"avx512_bf16", run_here, round,      layer_norm, gelu,  tile_bytes,
                             pack,          multiply, head_bytes, pack_head,  attend};

}  // namespace kvcast
#endif
