// GEMM and GEMV with AVX2: fp32, int8 and int4. Tiles are four strips of STRIP outputs each (`strips.hpp`).
//
// The files that include this where their instructions are allowed differ in how a product of int8 is taken. They
// have SIGNS, which stored codes are xored with, and
//   begin(offset): the initial sum of products of such codes and a row's, for the row's offset;
//   add(sum, weights, row): four such products for each of 8 outputs;
//   add_sixes(sum, weights, row): likewise, weights are 0 .. 63;
//   add_nibbles(sum, weights, row): likewise, weights are 0 .. 15;
//   end_nibbles(sum): sums of a group of nibbles.
// So it includes nothing itself and defines nothing that two files could share.
#pragma once

constexpr int STRIPS = BLOCK / STRIP;
constexpr int FLOATS = STRIP, SIDE = 4;

INLINE void round_vectors(const __m256 v[VECTORS], const Rounded& to) {
  // Magnitudes compare as integers in the order of the floats, and NaN is above them all, so it is kept.
  __m256i most = _mm256_setzero_si256();
  for (int z = 0; z < VECTORS; z++) most = _mm256_max_epi32(most, _mm256_castps_si256(magnitude(v[z])));
  const int32_t bits = greatest(most);
  float m;
  std::memcpy(&m, &bits, sizeof m);
  const bool is_zero = m < SMALLEST;
  const __m256 inverse = _mm256_set1_ps(m >= SMALLEST ? 127.f / m : 0.f);
  for (int g = 0; g < BLOCK / GROUP; g++) {
    __m256i codes[4];
    for (int z = 0; z < 4; z++) {
      const __m256i nearest = _mm256_cvtps_epi32(_mm256_mul_ps(v[4 * g + z], inverse));
      codes[z] = _mm256_max_epi32(nearest, _mm256_set1_epi32(-127));  // NaN came as the least integer
    }
    int32_t* fine = to.fine + 2 * g;
    for (int i = 0; i < 2; i++) fine[i] = -128 * total(_mm256_add_epi32(codes[2 * i], codes[2 * i + 1]));
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes + g * GROUP),
                        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    to.offsets[g] = fine[0] + fine[1];
  }
  *to.scales = is_zero ? 0.f : m / 127.f;
}

void round(const float* x, int count, const Rounded& to) {
  __m256 v[VECTORS];
  for (int z = 0; z < VECTORS; z++) v[z] = load(x + 8 * z, count - 8 * z);
  round_vectors(v, to);
}

void finish(const float* x, int count, const Epilogue& epilogue) {
  with_activation(epilogue.activation, [&](auto f) {
    __m256 v[VECTORS];
    for (int z = 0; z < VECTORS; z++) {
      const int there = count - 8 * z;
      v[z] = f(load(x + 8 * z, there));
      if (epilogue.residual) v[z] = _mm256_add_ps(v[z], load(epilogue.residual + 8 * z, there));
      if (epilogue.out) store(epilogue.out + 8 * z, there, v[z]);
    }
    if (epilogue.to) round_vectors(v, *epilogue.to);
  });
}

constexpr int LANES = 8;

INLINE Vector halves(const uint8_t* at, int z) { return load(reinterpret_cast<const uint16_t*>(at) + LANES * z); }
INLINE __m128i load_bytes(const uint8_t* at, int z) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + LANES * z)); }
INLINE Vector bytes(const uint8_t* at, int z) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_bytes(at, z))); }
INLINE Vector signed_bytes(const uint8_t* at, int z) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(at, z))); }

#include "vec/strips.hpp"

namespace f32 {

// A few rows take several strips at once, so that there are sums enough to hide an addition's latency.
template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, int inputs, float* out) {
  constexpr int AT_ONCE = ROWS == 1 ? STRIPS : ROWS == 2 ? 2 : 1;
  const float* weights = reinterpret_cast<const float*>(tile);
  const size_t apart = static_cast<size_t>(inputs) * STRIP;
  const float* bias = weights + STRIPS * apart;
  for (int strip = 0; strip < STRIPS; strip += AT_ONCE) {
    __m256 sums[ROWS][AT_ONCE * PAIR];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < AT_ONCE * PAIR; z++) sums[m][z] = _mm256_setzero_ps();
    multiply_strips<ROWS, AT_ONCE>(weights + strip * apart, apart, inputs, in.x, in.stride, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < AT_ONCE * PAIR; z++) {
        const int n = strip * STRIP + z * 8;
        _mm256_storeu_ps(out + m * BLOCK + n, _mm256_add_ps(sums[m][z], load(bias + n)));
      }
  }
}

void multiply_any(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  using Multiply = void (*)(const uint8_t*, const Operand&, int, float*);
  constexpr Multiply BY_ROWS[MOST_ROWS] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};
  BY_ROWS[rows - 1](tile, in, inputs, out);
}

}  // namespace f32

// Shared by the formats of codes: consecutive strips, and behind them the floats of each output, given as the floats
// of a strip's first, and a table (if any).
template <class Strip, int ROWS>
void multiply(const uint8_t* tile, const Operand& in, float* out) {
  const size_t strip = Strip::bytes(in.rounded.inputs);
  const float* last = reinterpret_cast<const float*>(tile + STRIPS * strip);
  const uint8_t* table = groups::table_of(tile, strip);
  for (int i = 0; i < STRIPS; i++)
    Strip::template multiply<ROWS>(tile + i * strip, in.rounded, last + i * STRIP, table, out + i * STRIP);
}

// The sums of three rows fit into the registers.
template <class Strip>
void multiply_any(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  using Multiply = void (*)(const uint8_t*, const Operand&, float*);
  constexpr Multiply BY_ROWS[] = {multiply<Strip, 1>, multiply<Strip, 2>, multiply<Strip, 3>};
  const int at_once = rows <= 3 ? rows : (rows + 1) / 2;
  for (int m = 0; m < rows; m += at_once)
    BY_ROWS[std::min(at_once, rows - m) - 1](tile, in.row(m), out + m * BLOCK);
}

INLINE __m256i load_codes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Four codes of a row, for every output.
INLINE __m256i four(const int8_t* codes) {
  int32_t bits;
  std::memcpy(&bits, codes, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// sums += `count` inputs of a strip x codes.
template <int ROWS>
INLINE void dot_quads(const uint8_t* weights, int count, const int8_t* codes, size_t stride, __m256i sums[ROWS][PAIR]) {
  for (int k = 0; k < count; k += 4, weights += 4 * STRIP) {
    __m256i w[PAIR];
    for (int z = 0; z < PAIR; z++) w[z] = load_codes(weights + z * 32);
    for (int m = 0; m < ROWS; m++) {
      const __m256i y = four(codes + m * stride + k);
      for (int z = 0; z < PAIR; z++) add(sums[m][z], w[z], y);
    }
  }
}

template <int ROWS>
INLINE void zero(__m256 totals[ROWS][PAIR]) {
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) totals[m][z] = _mm256_setzero_ps();
}

namespace int8 {

struct Strip {
  static size_t bytes(int inputs) { return static_cast<size_t>(STRIP) * inputs; }

  template <int ROWS>
  static INLINE void multiply(const uint8_t* weights, const Rounded& in, const float* scales, const uint8_t*, float* out) {
    const int blocks = in.inputs / BLOCK;
    __m256 totals[ROWS][PAIR];
    zero<ROWS>(totals);
    for (int b = 0; b < blocks; b++, weights += BLOCK * STRIP) {
      __m256i sums[ROWS][PAIR];
      for (int m = 0; m < ROWS; m++) {
        const int32_t* offsets = in.offsets + (m * blocks + b) * 2;
        for (int z = 0; z < PAIR; z++) sums[m][z] = begin(offsets[0] + offsets[1]);
      }
      if (ROWS > 1) fetch_ahead(weights, BLOCK * STRIP);
      dot_quads<ROWS>(weights, BLOCK, in.codes + b * BLOCK, in.inputs, sums);
      for (int m = 0; m < ROWS; m++) {
        const __m256 scale = _mm256_set1_ps(in.scales[m * blocks + b]);
        for (int z = 0; z < PAIR; z++) totals[m][z] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[m][z]), scale, totals[m][z]);
      }
    }
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < PAIR; z++)
        _mm256_storeu_ps(out + m * BLOCK + z * 8,
                         _mm256_fmadd_ps(totals[m][z], load(scales + z * 8), load(scales + BLOCK + z * 8)));
  }
};

}  // namespace int8

namespace groups {

// sums = a group of codes of 4 bits x codes. `numbers`: of a table.
template <class Of, int ROWS>
INLINE void dot_nibbles(const uint8_t* weights, __m256i numbers, const int8_t* codes, size_t stride, const int32_t* offsets,
                        size_t apart, __m256i sums[ROWS][PAIR]) {
  constexpr bool TABLE = Of::CODES_ARE == Coded::TABLE;
  const __m256i low = _mm256_set1_epi8(15);
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = TABLE ? begin(offsets[m * apart]) : _mm256_setzero_si256();
  for (int k = 0; k < Of::DEPTH / 2; k += 4, weights += 4 * STRIP)
    for (int z = 0; z < PAIR; z++) {
      const __m256i both = load_codes(weights + z * 32);
      __m256i w[2] = {_mm256_and_si256(both, low), _mm256_and_si256(_mm256_srli_epi16(both, 4), low)};
      for (int half = 0; TABLE && half < 2; half++) w[half] = _mm256_shuffle_epi8(numbers, w[half]);
      for (int m = 0; m < ROWS; m++)
        for (int half = 0; half < 2; half++) {
          const __m256i y = four(codes + m * stride + k + half * (Of::DEPTH / 2));
          if (TABLE)
            add(sums[m][z], w[half], y);
          else
            add_nibbles(sums[m][z], w[half], y);
        }
    }
  if (TABLE) return;
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = end_nibbles(sums[m][z]);
}

// sums += four inputs of a quarter of a block of codes of 6 bits x codes.
template <int INDEX, int ROWS>
INLINE void dot_sixes(const uint8_t* weights, const int8_t* codes, size_t stride, __m256i sums[ROWS][PAIR]) {
  constexpr int QUADS = 4 * STRIP;
  __m256i w[PAIR];
  for (int z = 0; z < PAIR; z++) {
    const __m256i low = load_codes(weights + INDEX / 2 * QUADS + z * 32), high = load_codes(weights + 2 * QUADS + z * 32);
    const __m256i nibbles = INDEX % 2 ? _mm256_srli_epi16(low, 4) : low;
    const __m256i bits = INDEX == 3 ? _mm256_srli_epi16(high, 2) : _mm256_slli_epi16(high, (4 - 2 * INDEX) & 15);
    w[z] = _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)), _mm256_and_si256(bits, _mm256_set1_epi8(0x30)));
  }
  for (int m = 0; m < ROWS; m++) {
    const __m256i y = four(codes + INDEX * QUARTER + m * stride);
    for (int z = 0; z < PAIR; z++) add_sixes(sums[m][z], w[z], y);
  }
}

// sums = one of a block's groups x codes.
template <class Of, int INDEX, int ROWS>
INLINE void dot_group(const uint8_t* weights, const int8_t* codes, size_t stride, const int32_t* offsets, size_t apart,
                      __m256i sums[ROWS][PAIR]) {
  constexpr int EACH = Of::DEPTH / QUARTER, FIRST = INDEX * EACH;
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = _mm256_set1_epi32(offsets[m * apart] / 128 * Of::ZERO);
#pragma GCC unroll 1
  for (int k = 0; k < QUARTER; k += 4, weights += 3 * 4 * STRIP, codes += 4) {
    dot_sixes<FIRST, ROWS>(weights, codes, stride, sums);
    if constexpr (EACH == 2) dot_sixes<FIRST + 1, ROWS>(weights, codes, stride, sums);
  }
}

template <class Of>
struct Strip {
  static size_t bytes(int inputs) { return strip_bytes<Of>(inputs); }

  template <int ROWS>
  static INLINE void multiply(const uint8_t* part, const Rounded& in, const float* bias, const uint8_t* table, float* out) {
    constexpr int OF_BLOCK = BLOCK / Of::DEPTH;
    const int blocks = in.inputs / BLOCK, steps = blocks * OF_BLOCK;
    const int32_t* offsets = Of::DEPTH == GROUP ? in.offsets : in.fine;
    const __m256i numbers = Of::CODES_ARE == Coded::TABLE ? load_codes(table) : _mm256_setzero_si256();
    __m256 totals[ROWS][PAIR];
    zero<ROWS>(totals);
    for (int first = 0; first < steps; first += Of::STEPS, part += Of::EACH)
      for (int i = 0; i < Of::STEPS; i++) {
        const int step = first + i;
        const uint8_t* weights = part + Of::codes(i);
        const int8_t* codes = in.codes + step * Of::DEPTH;
        // For one row the hardware prefetcher suffices.
        if (ROWS > 1) fetch_ahead(part + i * (Of::EACH / Of::STEPS), Of::EACH / Of::STEPS);
        __m256i sums[ROWS][PAIR];
        if constexpr (Of::CODES_ARE == Coded::BYTES) {
          for (int m = 0; m < ROWS; m++)
            for (int z = 0; z < PAIR; z++) sums[m][z] = begin(offsets[m * steps + step]);
          dot_quads<ROWS>(weights, Of::DEPTH, codes, in.inputs, sums);
        } else if constexpr (Of::CODES_ARE == Coded::SIXES) {
          with_index<OF_BLOCK>(i % OF_BLOCK, [&](auto index) {
            const int8_t* block = in.codes + step / OF_BLOCK * BLOCK;
            dot_group<Of, decltype(index)::value, ROWS>(weights, block, in.inputs, offsets + step, steps, sums);
          });
        } else {
          dot_nibbles<Of, ROWS>(weights, numbers, codes, in.inputs, offsets + step, steps, sums);
        }
        __m256 d[PAIR], least[PAIR];
        for (int z = 0; z < PAIR; z++) {
          d[z] = Of::scale(part, i, z);
          if (Of::LEAST) least[z] = Of::least(part, i, z);
        }
        for (int m = 0; m < ROWS; m++) {
          const float s = in.scales[m * blocks + step / OF_BLOCK];
          const __m256 scale = _mm256_set1_ps(s);
          const __m256 of_codes = _mm256_set1_ps(static_cast<float>(offsets[m * steps + step]) * s * (-1 / 128.f));
          for (int z = 0; z < PAIR; z++) {
            totals[m][z] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[m][z]), scale), d[z], totals[m][z]);
            if (Of::LEAST) totals[m][z] = _mm256_fmadd_ps(of_codes, least[z], totals[m][z]);
          }
        }
      }
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < PAIR; z++)
        _mm256_storeu_ps(out + m * BLOCK + z * 8, _mm256_add_ps(totals[m][z], load(bias + z * 8)));
  }
};

template <class Of>
constexpr Tiles TILES = {bytes_of<Of>, pack<Of>, unpack<Of>, multiply_any<Strip<Of>>};

}  // namespace groups

constexpr Gemm GEMM = {
    round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply_any},
        {int8::bytes, int8::pack, int8::unpack, multiply_any<int8::Strip>},
        groups::TILES<Int8Block>,
        groups::TILES<Int4Min>,
        groups::TILES<Int4Table>,
        groups::TILES<Int4Large>,
        groups::TILES<Int4TableLarge>,
        groups::TILES<Int8LargeMin>,
        groups::TILES<Int6Block>,
        groups::TILES<Int6Large>,
        groups::TILES<Int6LargeMin>,
        groups::TILES<Int4TableFine>,
        groups::TILES<Int4ZeroPoint>,
    },
};
