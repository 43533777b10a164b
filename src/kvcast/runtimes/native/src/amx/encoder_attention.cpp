// Attention of an encoder with AMX, on heads as AVX-512 packs them: scores of int8 and shares of bf16 times values
// for 16 queries at a time, with AVX-512 for the softmax between them. Scores equal AVX-512's bit for bit;
// the mixed values differ in the order of sums. A query's result depends on that query alone.
#include "amx/amx.hpp"
#include "avx512/head.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;
using Head = Int8Head<uint16_t>;

constexpr int DEPTH = ROW_BYTES / sizeof(uint16_t);  // positions of values that a tile holds

// AMX's tiles: sums of 64 columns (0 .. 3), queries or shares (4), keys or values (5).
void set_queries(int count) {
  Shapes shapes;
  for (int tile = 0; tile < 5; tile++) shapes.set(tile, count, ROW_BYTES);
  shapes.set(5, ROWS, ROW_BYTES);
  set_shapes(shapes);
}

// Calls work(z) with 0 .. 3, each as a type.
template <class Work>
INLINE void for_vectors(const Work& work) {
  work(std::integral_constant<int, 0>());
  work(std::integral_constant<int, 1>());
  work(std::integral_constant<int, 2>());
  work(std::integral_constant<int, 3>());
}

// int32 sums [queries, CHUNK] of queries' and keys' codes.
INLINE void multiply_keys(const Head& head, int first, int begin, int end, float sums[ROWS][CHUNK]) {
  const int8_t* query = head.query + static_cast<size_t>(first) * head.width;
  for (int t = begin; t < end; t += BLOCK) {
    const uint8_t* key = head.key + static_cast<size_t>(t) * head.width;
    for_vectors([](auto z) { zero<z>(); });
    for (int k = 0; k < head.width; k += ROW_BYTES) {
      load<4>(query + k, head.width);
      for_vectors([&](auto z) {
        load<5>(key + k * BLOCK + z * ROW_BYTES, 4 * BLOCK);
        dot_int8<z, 4, 5>();
      });
    }
    for_vectors([&](auto z) { store<z>(&sums[0][t - begin + z * 16], CHUNK * sizeof(float)); });
  }
}

// Sums of a query become scores, not yet times its scale: -inf from `positions` on. Returns their maximum.
INLINE float score(const Head& head, int query, int begin, int end, float* sums) {
  const __m512 nothing = _mm512_set1_ps(-INFINITY);
  const __m512i offset = _mm512_set1_epi32(head.offset[query]);
  __m512 most = nothing;
  for (int t = begin; t < end; t += 16) {
    const __m512i sum = _mm512_add_epi32(_mm512_load_si512(sums + t - begin), offset);
    const __mmask16 there = kvcast::first(head.positions - t);
    const __m512 x = _mm512_mask_mul_ps(nothing, there, _mm512_cvtepi32_ps(sum), _mm512_loadu_ps(head.key_scale + t));
    most = _mm512_max_ps(most, x);
    _mm512_store_ps(sums + t - begin, x);
  }
  return _mm512_reduce_max_ps(most);
}

// mixed [queries, BLOCK]: shares x values, of columns d .. d + BLOCK.
INLINE void multiply_values(const Head& head, int begin, int end, int d, const uint16_t shares[ROWS][CHUNK],
                            float mixed[ROWS][BLOCK]) {
  const uint16_t* value = head.value + static_cast<size_t>(begin) * head.width + 2 * d;
  for_vectors([](auto z) { zero<z>(); });
  for (int t = 0; t < end - begin; t += DEPTH) {
    load<4>(shares[0] + t, CHUNK * sizeof(uint16_t));
    for_vectors([&](auto z) {
      load<5>(value + static_cast<size_t>(t) * head.width + z * 32, 2 * sizeof(uint16_t) * head.width);
      dot_bf16<z, 4, 5>();
    });
  }
  for_vectors([&](auto z) { store<z>(mixed[0] + z * 16, BLOCK * sizeof(float)); });
}

// One pass, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).
void attend_queries(const EncoderHead& of, int first, int count) {
  const Head head(of);
  const int head_dim = of.head_dim;
  const size_t stride = of.out_stride;
  float* out = of.out + first * stride;
  alignas(64) float scores[ROWS][CHUNK], mixed[ROWS][BLOCK];
  alignas(64) uint16_t shares[ROWS][CHUNK];
  alignas(64) float most[ROWS] = {}, peak[ROWS], total[ROWS] = {}, kept[ROWS];
  const __m512 scales = _mm512_maskz_loadu_ps(kvcast::first(count), head.query_scale + first);
  __m512 peaks = _mm512_set1_ps(-INFINITY);
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    multiply_keys(head, first, begin, end, scores);
    for (int m = 0; m < count; m++) most[m] = score(head, first + m, begin, end, scores[m]);
    const __m512 next = _mm512_max_ps(peaks, _mm512_mul_ps(_mm512_load_ps(most), scales));
    _mm512_store_ps(kept, exp2(_mm512_sub_ps(peaks, next)));
    _mm512_store_ps(peak, next);
    peaks = next;
    for (int m = 0; m < count; m++)
      total[m] = total[m] * kept[m] + share(scores[m], end - begin, head.query_scale[first + m], peak[m], shares[m]);
    for (int d = 0; d < head_dim; d += BLOCK) {
      multiply_values(head, begin, end, d, shares, mixed);
      for (int m = 0; m < count; m++) {
        const __m512 factor = _mm512_set1_ps(end == head.filled ? 1 / total[m] : 1.f), old = _mm512_set1_ps(kept[m]);
        for (int z = 0; z < VECTORS; z++) {
          float* to = out + m * stride + d + z * 16;
          const __mmask16 there = kvcast::first(head_dim - d - z * 16);
          __m512 sum = _mm512_load_ps(mixed[m] + z * 16);
          if (begin) sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(there, to), old, sum);
          _mm512_mask_storeu_ps(to, there, _mm512_mul_ps(sum, factor));
        }
      }
    }
  }
}

void attend(const EncoderHead& of, int first, int last) {
  for (int s = first; s < last; s += ROWS) {
    const int count = std::min(ROWS, last - s);
    if (s == first || count < ROWS) set_queries(count);
    attend_queries(of, s, count);
  }
  release();
}

}  // namespace

AVX512_END

const EncoderAttention amx_encoder_attention = {avx512_bf16_encoder_attention.head_bytes,
                                                avx512_bf16_encoder_attention.pack_head, attend};

}  // namespace kvcast
#endif
