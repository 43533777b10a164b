// Lines of a cache as AVX-512 reads them, and a part of them turned into floats for many queries: keys as columns,
// a lane for each position.
//
// A query alone takes its products lane by lane of a key and adds up the lanes at the end (`totals` in
// avx512/attention.cpp). Over columns the same sums are taken in the same order for 16 positions at once, with
// nothing to add across lanes.
#pragma once
#include "avx512/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

// Columns are stored in blocks of positions: [PART / COLUMNS, padded(d), COLUMNS].
constexpr int COLUMNS = 32;
constexpr int COLUMN_VECTORS = COLUMNS / 16;
constexpr int COLUMN_QUERIES = 3;  // that share a block's loads: the tree of their sums fills the registers

// Rows become columns.
INLINE void transpose(__m512 (&x)[16]) {
  __m512 y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int k = 0; k < 2; k++) {
      const __m512d a = _mm512_castps_pd(y[i + k]), b = _mm512_castps_pd(y[i + k + 2]);
      x[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      x[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  for (int i = 0; i < 16; i += 8)
    for (int k = 0; k < 4; k++) {
      y[i + k] = _mm512_shuffle_f32x4(x[i + k], x[i + k + 4], 0x88);
      y[i + k + 4] = _mm512_shuffle_f32x4(x[i + k], x[i + k + 4], 0xdd);
    }
  for (int k = 0; k < 8; k++) {
    x[k] = _mm512_shuffle_f32x4(y[k], y[k + 8], 0x88);
    x[k + 8] = _mm512_shuffle_f32x4(y[k], y[k + 8], 0xdd);
  }
}

// The address of the 16 positions from t on among columns, at element 0 of a head.
INLINE size_t column(int t, int head_dim) {
  return static_cast<size_t>(t / COLUMNS) * COLUMNS * padded(head_dim) + t % COLUMNS;
}

// The keys of a part, floats or codes, as columns; padded to whole blocks with zeros.
template <class T>
void pack_columns(const Part& part, float* columns) {
  const int d = part.head_dim, count = part.counts[0] + part.counts[1];
  const int end = (part.begin + count + COLUMNS - 1) / COLUMNS * COLUMNS;
  for (int t = part.begin / COLUMNS * COLUMNS; t < end; t += 16) {
    const T* lines[16];
    for (int i = 0; i < 16; i++) {
      const int at = t + i - part.begin, second = at - part.counts[0];
      lines[i] = at < 0 || at >= count ? nullptr
                 : second < 0          ? static_cast<const T*>(part.keys[0]) + at * pitch<T>(d)
                                       : static_cast<const T*>(part.keys[1]) + second * pitch<T>(d);
    }
    float* to = columns + column(t, d);
    for (int j = 0; j < d; j += 16) {
      const __mmask16 there = first(d - j);
      __m512 x[16];
      for (int i = 0; i < 16; i++) x[i] = lines[i] ? load(lines[i] + j, there) : _mm512_setzero_ps();
      transpose(x);
      for (int i = 0; i < 16; i++) _mm512_store_ps(to + static_cast<size_t>(j + i) * COLUMNS, x[i]);
    }
  }
}

// The values of a part, floats or codes, as floats [PART, d].
template <class T>
void pack_values(const Part& part, float* values) {
  const int d = part.head_dim;
  float* to = values + static_cast<size_t>(part.begin) * d;
  for (int i = 0; i < 2; i++) {
    const T* line = static_cast<const T*>(part.values[i]);
    for (int t = 0; t < part.counts[i]; t++, line += pitch<T>(d), to += d)
      for (int j = 0; j < d; j += 16) _mm512_mask_storeu_ps(to + j, first(d - j), load(line + j, first(d - j)));
  }
}

// GCC 12 reads columns anew for each product around the intrinsic, and loads are the bottleneck.
INLINE void add_product(__m512& sum, __m512 a, __m512 b) { asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }

// The products of a block's columns with QUERIES queries, numbers LANE, LANE + STEP, .. of each 16: summed in the
// order of `totals`. DIM is d; 0: any.
template <int QUERIES, int DIM, int STEP, int LANE>
INLINE void sum_lanes(const float* columns, const float* query, int head_dim,
                      __m512 (&sums)[QUERIES][COLUMN_VECTORS]) {
  const int width = padded(DIM ? DIM : head_dim);
  if constexpr (STEP == 16) {
    for (int m = 0; m < QUERIES; m++)
      for (int z = 0; z < COLUMN_VECTORS; z++) sums[m][z] = _mm512_setzero_ps();
    for (int j = LANE; j < width; j += 16) {
      __m512 k[COLUMN_VECTORS];
      for (int z = 0; z < COLUMN_VECTORS; z++) k[z] = _mm512_load_ps(columns + j * COLUMNS + 16 * z);
      for (int m = 0; m < QUERIES; m++) {
        const __m512 q = _mm512_set1_ps(query[m * width + j]);
        for (int z = 0; z < COLUMN_VECTORS; z++) add_product(sums[m][z], k[z], q);
      }
    }
  } else {
    __m512 others[QUERIES][COLUMN_VECTORS];
    sum_lanes<QUERIES, DIM, 2 * STEP, LANE>(columns, query, head_dim, sums);
    sum_lanes<QUERIES, DIM, 2 * STEP, LANE + STEP>(columns, query, head_dim, others);
    for (int m = 0; m < QUERIES; m++)
      for (int z = 0; z < COLUMN_VECTORS; z++) sums[m][z] = _mm512_add_ps(sums[m][z], others[m][z]);
  }
}

// Scores of some queries for the blocks of positions begin .. end.
template <int DIM>
void score_columns(const float* columns, int begin, int end, int head_dim, const float* query, int queries,
                   float* scores) {
  const int width = padded(head_dim);
  for (int t = begin / COLUMNS * COLUMNS; t < end; t += COLUMNS) {
    const float* block = columns + column(t, head_dim);
    const auto take = [&](auto count, int m) {
      __m512 sums[decltype(count)::value][COLUMN_VECTORS];
      sum_lanes<decltype(count)::value, DIM, 1, 0>(block, query + m * width, head_dim, sums);
      for (int i = 0; i < decltype(count)::value; i++)
        for (int z = 0; z < COLUMN_VECTORS; z++) _mm512_store_ps(scores + (m + i) * SCORES + t + 16 * z, sums[i][z]);
    };
    int m = 0;
    for (; m + COLUMN_QUERIES <= queries; m += COLUMN_QUERIES)
      take(std::integral_constant<int, COLUMN_QUERIES>(), m);
    for (; m < queries; m++) take(std::integral_constant<int, 1>(), m);
  }
}

AVX512_END

}  // namespace kvcast
#endif
