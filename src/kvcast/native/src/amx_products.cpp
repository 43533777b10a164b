// Products of many rows with AMX, on AVX-512's own tiles and with its results, bit for bit: sums of integers are
// exact in any order, and they become floats a block at a time as there. So a few rows are left to AVX-512,
// and fp32 altogether.
//
// The sums of 32 rows and half a tile's outputs are in four of AMX's tiles. They cross to AVX-512 through memory
// after each block; meanwhile the next block is multiplied.
#include "amx.hpp"
#include "avx512_tiles.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;

constexpr int STRIP = 2 * ROWS;  // rows whose sums are held at once
constexpr int QUADS = 4 * HALF;  // bytes of four inputs of a half

// AMX's tiles: sums of the first rows (0, 1) and of the others (2, 3), both rows' codes (4, 5), weights (6, 7).
void set_strip(int rows, int depth) {
  Shapes shapes;
  const int first = std::min(rows, ROWS), others = rows - first;
  for (int tile = 0; tile < 4; tile++)
    if (const int count = tile < 2 ? first : others) shapes.set(tile, count, ROW_BYTES);
  shapes.set(4, first, depth);
  if (others) shapes.set(5, others, depth);
  for (int tile = 6; tile < 8; tile++) shapes.set(tile, depth / 4, ROW_BYTES);
  set_shapes(shapes);
}

// sums [rows, HALF] of codes, rows `stride` apart, and weights [depth / 4, HALF, 4].
INLINE void multiply_strip(const int8_t* codes, size_t stride, int rows, const uint8_t* weights, int32_t* sums) {
  constexpr size_t SUM_BYTES = HALF * sizeof(int32_t);
  load<4>(codes, stride);
  load<6>(weights, QUADS);
  load<7>(weights + ROW_BYTES, QUADS);
  zero<0>();
  zero<1>();
  dot_int8<0, 4, 6>();
  dot_int8<1, 4, 7>();
  if (rows > ROWS) {
    load<5>(codes + ROWS * stride, stride);
    zero<2>();
    zero<3>();
    dot_int8<2, 5, 6>();
    dot_int8<3, 5, 7>();
    store<2>(sums + ROWS * HALF, SUM_BYTES);
    store<3>(sums + ROWS * HALF + 16, SUM_BYTES);
  }
  store<0>(sums, SUM_BYTES);
  store<1>(sums + 16, SUM_BYTES);
}

// of_row(m) returns what makes a new total of each vector of sums [rows, HALF]: f(z, sum, total).
template <class OfRow>
INLINE void add_up(const int32_t* sums, int rows, float* totals, const OfRow& of_row) {
  for (int m = 0; m < rows; m++) {
    const auto added = of_row(m);
    for (int z = 0; z < PAIR; z++) {
      float* total = totals + m * BLOCK + 16 * z;
      _mm512_storeu_ps(total, added(z, _mm512_load_si512(sums + m * HALF + 16 * z), _mm512_loadu_ps(total)));
    }
  }
}

// A format's half of a tile: its weights by DEPTH inputs, and how their sums add up to totals [rows, BLOCK].
struct Int8 {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int DEPTH = BLOCK;

  const uint8_t* tile;
  int half;
  const Rounded& in;

  INLINE const uint8_t* weights(int step, uint8_t*) const {
    return tile + static_cast<size_t>(half) * HALF * in.inputs + static_cast<size_t>(step) * BLOCK * HALF;
  }

  INLINE void add(int step, const int32_t* sums, int rows, float* totals) const {
    const int blocks = in.inputs / BLOCK;
    add_up(sums, rows, totals, [&](int m) {
      const int32_t* offsets = in.offsets + (m * blocks + step) * 2;
      const __m512i offset = _mm512_set1_epi32(offsets[0] + offsets[1]);
      const __m512 scale = _mm512_set1_ps(in.scales[m * blocks + step]);
      return [=](int, __m512i sum, __m512 total) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(sum, offset)), scale, total);
      };
    });
  }

  INLINE __m512 end(int z, __m512 total) const {
    const float* scales = reinterpret_cast<const float*>(tile + static_cast<size_t>(BLOCK) * in.inputs) + half * HALF;
    return _mm512_fmadd_ps(total, _mm512_loadu_ps(scales + 16 * z), _mm512_loadu_ps(scales + BLOCK + 16 * z));
  }
};

template <size_t EACH>
struct Groups {
  static constexpr int DEPTH = GROUP;

  const uint8_t* tile;
  int half;
  const Rounded& in;

  INLINE const uint8_t* group(int step) const { return tile + (static_cast<size_t>(half) * (in.inputs / GROUP) + step) * EACH; }
  INLINE float scale_of(int m, int step) const { return in.scales[m * (in.inputs / BLOCK) + step / 2]; }
  INLINE int32_t offset_of(int m, int step) const { return in.offsets[m * (in.inputs / GROUP) + step]; }

  INLINE __m512 end(int z, __m512 total) const {
    const float* bias = reinterpret_cast<const float*>(tile + 2 * EACH * (in.inputs / GROUP)) + half * HALF;
    return _mm512_add_ps(total, _mm512_loadu_ps(bias + 16 * z));
  }
};

struct Int8Block : Groups<INT8_GROUP> {
  static constexpr Format FORMAT = Format::INT8_BLOCK;

  INLINE const uint8_t* weights(int step, uint8_t*) const { return group(step) + HALVES; }

  INLINE void add(int step, const int32_t* sums, int rows, float* totals) const {
    const __m512 d[PAIR] = {halves(group(step)), halves(group(step) + 32)};
    add_up(sums, rows, totals, [&](int m) {
      const __m512i offset = _mm512_set1_epi32(offset_of(m, step));
      const __m512 scale = _mm512_set1_ps(scale_of(m, step));
      return [=, &d](int z, __m512i sum, __m512 total) {
        sum = _mm512_add_epi32(sum, offset);
        return _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), d[z], total);
      };
    });
  }
};

struct Int4Min : Groups<INT4_GROUP> {
  static constexpr Format FORMAT = Format::INT4_MIN;

  // A byte for each code, in `space`.
  INLINE const uint8_t* weights(int step, uint8_t* space) const {
    constexpr int BYTES = GROUP * HALF / 2;
    const uint8_t* codes = group(step) + 2 * HALVES;
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < BYTES; i += 64) {
      const __m512i both = _mm512_loadu_si512(codes + i);
      _mm512_store_si512(space + i, _mm512_and_si512(both, low));
      _mm512_store_si512(space + BYTES + i, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
    return space;
  }

  INLINE void add(int step, const int32_t* sums, int rows, float* totals) const {
    const __m512 d[PAIR] = {halves(group(step)), halves(group(step) + 32)};
    const __m512 least[PAIR] = {halves(group(step) + HALVES), halves(group(step) + HALVES + 32)};
    add_up(sums, rows, totals, [&](int m) {
      const float s = scale_of(m, step);
      const __m512 scale = _mm512_set1_ps(s);
      const __m512 codes = _mm512_set1_ps(static_cast<float>(offset_of(m, step)) * s * (-1 / 128.f));
      return [=, &d, &least](int z, __m512i sum, __m512 total) {
        total = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale), d[z], total);
        return _mm512_fmadd_ps(codes, least[z], total);
      };
    });
  }
};

template <class Of>
INLINE void multiply_half(const Of& of, int rows, float* out) {
  alignas(64) int32_t sums[2][STRIP * HALF];
  alignas(64) uint8_t space[GROUP * HALF];
  for (int m = 0; m < rows; m++)
    for (int z = 0; z < PAIR; z++) _mm512_storeu_ps(out + m * BLOCK + 16 * z, _mm512_setzero_ps());
  const int steps = of.in.inputs / Of::DEPTH;
  for (int step = 0; step <= steps; step++) {
    if (step < steps)
      multiply_strip(of.in.codes + step * Of::DEPTH, of.in.inputs, rows, of.weights(step, space), sums[step % 2]);
    if (step > 0) of.add(step - 1, sums[(step - 1) % 2], rows, out);
  }
  for (int m = 0; m < rows; m++)
    for (int z = 0; z < PAIR; z++) {
      float* total = out + m * BLOCK + 16 * z;
      _mm512_storeu_ps(total, of.end(z, _mm512_loadu_ps(total)));
    }
}

template <class Of>
void multiply(const uint8_t* tile, const Operand& operand, int inputs, int rows, float* out) {
  if (rows <= MOST_ROWS) return avx512_products.of(Of::FORMAT).multiply(tile, operand, inputs, rows, out);
  for (int first = 0; first < rows; first += STRIP) {
    const int count = std::min(STRIP, rows - first);
    const Rounded in = operand.rounded.row(first);
    if (first == 0 || count < STRIP) set_strip(count, Of::DEPTH);
    for (int half = 0; half < 2; half++) multiply_half(Of{tile, half, in}, count, out + first * BLOCK + half * HALF);
  }
  release();
}

}  // namespace

AVX512_END

namespace {

// The same tiles, and more rows.
template <class Of>
Tiles tiles() {
  Tiles same = avx512_products.of(Of::FORMAT);
  same.multiply = multiply<Of>;
  same.most_rows = MOST_TILE_ROWS;
  return same;
}

}  // namespace

const Products amx_products = {
    avx512_products.round,
    avx512_products.finish,
    {avx512_products.of(Format::F32), tiles<Int8>(), tiles<Int8Block>(), tiles<Int4Min>()},
};

}  // namespace kvcast
#endif
