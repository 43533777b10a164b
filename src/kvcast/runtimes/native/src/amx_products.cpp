// Products of many rows with AMX, on AVX-512's own tiles and with its results, bit for bit: sums of integers are
// exact in any order, and they become floats a block at a time as there. So a few rows are left to AVX-512,
// and fp32 altogether.
//
// Weights of half a tile are unpacked once for all rows. Four of AMX's tiles are summed at a time, two of rows by two of
// outputs, so that each one that is loaded is used twice.
#include "amx.hpp"
#include "avx512_tiles.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;

constexpr int FEW = 12;               // rows for which loading tiles costs more than they gain
constexpr int SLICE = 512;            // inputs whose weights are unpacked at once
constexpr int STEPS = SLICE / FINE;   // at most: a step is a block, or a group
constexpr int ROWS_AT_ONCE = 2 * ROWS;

// Some inputs of half a tile: codes as AMX wants them, and in each step the factors of outputs where they have some.
struct Panel {
  alignas(64) int8_t codes[SLICE * HALF];  // [inputs / 4, HALF, 4]
  alignas(64) float scales[STEPS][HALF], least[STEPS][HALF];
};

// In each step the scales of rows, and where there are least values the sums of the codes times them.
struct Factors {
  alignas(64) float scales[STEPS][MOST_TILE_ROWS], sums[STEPS][MOST_TILE_ROWS];
};

// numbers [m, steps]: of a step and 16 rows from m on; zeros for missing rows.
INLINE __m512i of_rows(const void* numbers, int m, __mmask16 there, int step, int steps) {
  const __m512i rows = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int32_t* from = static_cast<const int32_t*>(numbers) + static_cast<size_t>(m) * steps + step;
  return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), there, _mm512_mullo_epi32(_mm512_set1_epi32(steps), rows), from, 4);
}
INLINE __m512 floats_of_rows(const float* numbers, int m, __mmask16 there, int step, int steps) {
  return _mm512_castsi512_ps(of_rows(numbers, m, there, step, steps));
}

INLINE __m512i with_sign(__m512i codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }

INLINE void unpack_bytes(const uint8_t* from, int count, int8_t* to) {
  for (int i = 0; i < count * HALF; i += 64) _mm512_store_si512(to + i, with_sign(_mm512_loadu_si512(from + i)));
}

// Half a tile of a format: its weights in steps of DEPTH inputs, the factors of rows and outputs in each step, and how
// sums add up to totals.
class Int8 {
 public:
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int DEPTH = BLOCK;

  INLINE Int8(const uint8_t* tile, const Rounded& in, int half)
      : codes_(tile + static_cast<size_t>(half) * HALF * in.inputs),
        ends_(reinterpret_cast<const float*>(tile + static_cast<size_t>(BLOCK) * in.inputs) + half * HALF) {}

  INLINE void unpack(int step, int i, Panel& to) const {
    unpack_bytes(codes_ + static_cast<size_t>(step) * BLOCK * HALF, BLOCK, to.codes + i * BLOCK * HALF);
  }

  static INLINE void factors(const Rounded& in, int m, __mmask16 there, int step, float* scales, float*) {
    _mm512_store_ps(scales, floats_of_rows(in.scales, m, there, step, in.inputs / BLOCK));
  }

  static INLINE __m512 add(__m512 total, __m512 sum, const Panel&, const Factors& of, int step, int m, int) {
    return _mm512_fmadd_ps(sum, _mm512_set1_ps(of.scales[step][m]), total);
  }

  INLINE __m512 end(int z, __m512 total) const {
    return _mm512_fmadd_ps(total, _mm512_loadu_ps(ends_ + 16 * z), _mm512_loadu_ps(ends_ + BLOCK + 16 * z));
  }

 private:
  const uint8_t* codes_;
  const float* ends_;
};

template <Format OF_FORMAT, class Of>
class Groups {
 public:
  static constexpr Format FORMAT = OF_FORMAT;
  static constexpr int DEPTH = Of::DEPTH, OF_BLOCK = BLOCK / DEPTH;

  INLINE Groups(const uint8_t* tile, const Rounded& in, int half)
      : parts_(tile + half * groups::strip_bytes<Of>(in.inputs)), behind_(tile + 2 * groups::strip_bytes<Of>(in.inputs)), half_(half) {}

  INLINE void unpack(int step, int i, Panel& to) const {
    const uint8_t* part = parts_ + static_cast<size_t>(step / Of::STEPS) * Of::EACH;
    const int of_part = step % Of::STEPS;
    for (int z = 0; z < PAIR; z++) {
      _mm512_store_ps(to.scales[i] + 16 * z, Of::scale(part, of_part, z));
      if constexpr (Of::LEAST) _mm512_store_ps(to.least[i] + 16 * z, Of::least(part, of_part, z));
    }
    if constexpr (Of::CODES_ARE == groups::Coded::BYTES)
      unpack_bytes(part + Of::codes(of_part), DEPTH, to.codes + i * DEPTH * HALF);
    else
      unpack_nibbles(part + Of::codes(of_part), to.codes + i * DEPTH * HALF);
  }

  static INLINE void factors(const Rounded& in, int m, __mmask16 there, int step, float* scales, float* sums) {
    const __m512 scale = floats_of_rows(in.scales, m, there, step / OF_BLOCK, in.inputs / BLOCK);
    _mm512_store_ps(scales, scale);
    if (!Of::LEAST) return;
    const int32_t* offsets = DEPTH == GROUP ? in.offsets : in.fine;
    const __m512 offset = _mm512_cvtepi32_ps(of_rows(offsets, m, there, step, in.inputs / DEPTH));
    _mm512_store_ps(sums, _mm512_mul_ps(_mm512_mul_ps(offset, scale), _mm512_set1_ps(-1 / 128.f)));
  }

  static INLINE __m512 add(__m512 total, __m512 sum, const Panel& panel, const Factors& of, int step, int m, int z) {
    const __m512 scaled = _mm512_mul_ps(sum, _mm512_set1_ps(of.scales[step][m]));
    total = _mm512_fmadd_ps(scaled, _mm512_load_ps(panel.scales[step] + 16 * z), total);
    if (!Of::LEAST) return total;
    return _mm512_fmadd_ps(_mm512_set1_ps(of.sums[step][m]), _mm512_load_ps(panel.least[step] + 16 * z), total);
  }

  INLINE __m512 end(int z, __m512 total) const {
    return _mm512_add_ps(total, _mm512_loadu_ps(reinterpret_cast<const float*>(behind_) + half_ * HALF + 16 * z));
  }

 private:
  INLINE void unpack_nibbles(const uint8_t* from, int8_t* to) const {
    const __m512i low = _mm512_set1_epi8(15);
    __m512i numbers = low;
    if (Of::CODES_ARE == groups::Coded::TABLE) numbers = with_sign(_mm512_loadu_si512(behind_ + BLOCK * sizeof(float)));
    const auto number = [&](__m512i bits) {
      const __m512i nibbles = _mm512_and_si512(bits, low);
      return Of::CODES_ARE == groups::Coded::TABLE ? _mm512_shuffle_epi8(numbers, nibbles) : nibbles;
    };
    constexpr int BYTES = DEPTH / 2 * HALF;
    for (int i = 0; i < BYTES; i += 64) {
      const __m512i pairs = _mm512_loadu_si512(from + i);
      _mm512_store_si512(to + i, number(pairs));
      _mm512_store_si512(to + BYTES + i, number(_mm512_srli_epi16(pairs, 4)));
    }
  }

  const uint8_t *parts_, *behind_;
  int half_;
};

// AMX's tiles: sums of the first 16 rows (0, 1) and of the others (2, 3), rows' codes (4, 5), weights (6, 7).
void set_tiles(int rows, int depth) {
  Shapes shapes;
  const int first = std::min(rows, ROWS), others = rows - first;
  for (int z = 0; z < 2; z++) {
    shapes.set(z, first, ROW_BYTES);
    shapes.set(6 + z, depth / 4, ROW_BYTES);
    if (others > 0) shapes.set(2 + z, others, ROW_BYTES);
  }
  shapes.set(4, first, depth);
  if (others > 0) shapes.set(5, others, depth);
  set_shapes(shapes);
}

// sums [rows, HALF] of a step: weights [DEPTH / 4, HALF, 4] x codes [rows, stride].
INLINE void multiply_step(const int8_t* weights, const int8_t* codes, size_t stride, bool has_others, int32_t* sums) {
  constexpr size_t ROW = HALF * sizeof(int32_t);
  zero<0>();
  zero<1>();
  load<4>(codes, stride);
  load<6>(weights, 2 * ROW_BYTES);
  dot_signed<0, 4, 6>();
  load<7>(weights + ROW_BYTES, 2 * ROW_BYTES);
  dot_signed<1, 4, 7>();
  if (has_others) {
    zero<2>();
    zero<3>();
    load<5>(codes + ROWS * stride, stride);
    dot_signed<2, 5, 6>();
    dot_signed<3, 5, 7>();
  }
  amx_tiles::store<0>(sums, ROW);
  amx_tiles::store<1>(sums + 16, ROW);
  if (has_others) {
    amx_tiles::store<2>(sums + ROWS * HALF, ROW);
    amx_tiles::store<3>(sums + ROWS * HALF + 16, ROW);
  }
}

// out [rows, BLOCK]: the totals of half a tile after a step with these sums. Before the first step there were none.
template <bool IS_FIRST, bool IS_LAST, class Of>
INLINE void add_step(const Of& of, const int32_t* sums, const Panel& panel, const Factors& factors, int step, int m, int rows,
                     float* out) {
  for (int i = 0; i < rows; i++)
    for (int z = 0; z < PAIR; z++) {
      float* const to = out + i * BLOCK + 16 * z;
      const __m512 before = IS_FIRST ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + i * HALF + 16 * z));
      const __m512 total = Of::add(before, sum, panel, factors, step, m + i, z);
      _mm512_storeu_ps(to, IS_LAST ? of.end(z, total) : total);
    }
}

// out [rows, BLOCK]: the totals of half a tile after `steps` from the input `begin` on, and those before.
template <class Of>
INLINE void multiply_rows(const Of& of, const Panel& panel, const Factors& factors, const Rounded& in, int m, int begin, int steps,
                          int rows, float* out) {
  alignas(64) int32_t sums[ROWS_AT_ONCE * HALF];
  const bool begins = begin == 0, ends = begin + steps * Of::DEPTH == in.inputs;
  const int8_t* codes = in.codes + static_cast<size_t>(m) * in.inputs + begin;
  for (int step = 0; step < steps; step++) {
    multiply_step(panel.codes + step * Of::DEPTH * HALF, codes + step * Of::DEPTH, in.inputs, rows > ROWS, sums);
    const bool is_first = begins && step == 0, is_last = ends && step == steps - 1;
    if (is_first && is_last)
      add_step<true, true>(of, sums, panel, factors, step, m, rows, out);
    else if (is_first)
      add_step<true, false>(of, sums, panel, factors, step, m, rows, out);
    else if (is_last)
      add_step<false, true>(of, sums, panel, factors, step, m, rows, out);
    else
      add_step<false, false>(of, sums, panel, factors, step, m, rows, out);
  }
}

template <class Of>
void multiply_slice(const uint8_t* tile, const Rounded& in, int begin, int end, int rows, float* out) {
  Panel panel;
  Factors factors;
  const int first = begin / Of::DEPTH, steps = (end - begin) / Of::DEPTH;
  for (int m = 0; m < rows; m += ROWS)
    for (int step = 0; step < steps; step++)
      Of::factors(in, m, kvcast::first(rows - m), first + step, factors.scales[step] + m, factors.sums[step] + m);
  for (int half = 0; half < 2; half++) {
    const Of of(tile, in, half);
    for (int step = 0; step < steps; step++) of.unpack(first + step, step, panel);
    for (int m = 0; m < rows; m += ROWS_AT_ONCE) {
      const int count = std::min(ROWS_AT_ONCE, rows - m);
      if (m == 0 || count < ROWS_AT_ONCE) set_tiles(count, Of::DEPTH);
      multiply_rows(of, panel, factors, in, m, begin, steps, count, out + m * BLOCK + half * HALF);
    }
  }
}

template <class Of>
void multiply(const uint8_t* tile, const Operand& operand, int inputs, int rows, float* out) {
  if (rows <= FEW) {
    for (int m = 0; m < rows; m += MOST_ROWS)
      avx512_products.of(Of::FORMAT).multiply(tile, operand.row(m), inputs, std::min(MOST_ROWS, rows - m), out + m * BLOCK);
    return;
  }
  const Rounded& in = operand.rounded;
  for (int begin = 0; begin < in.inputs; begin += SLICE)
    multiply_slice<Of>(tile, in, begin, std::min(begin + SLICE, in.inputs), rows, out);
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
    {
        avx512_products.of(Format::F32),
        tiles<Int8>(),
        tiles<Groups<Format::INT8_BLOCK, Int8Block>>(),
        tiles<Groups<Format::INT4_MIN, Int4Min>>(),
        tiles<Groups<Format::INT4_TABLE, Int4Table>>(),
        tiles<Groups<Format::INT4_LARGE, Int4Large>>(),
        tiles<Groups<Format::INT8_LARGE, Int8Large>>(),
        tiles<Groups<Format::INT8_LARGE_MIN, Int8LargeMin>>(),
    },
};

}  // namespace kvcast
#endif
