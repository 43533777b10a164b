// GEMM and GEMV of many rows with AMX, on AVX-512's own tiles and with its results, bit for bit: sums of integers are
// exact in any order, and they become floats a block at a time as there. So a few rows are left to AVX-512,
// and fp32 altogether.
//
// Weights of half a tile are unpacked once for all rows. Four of AMX's tiles are summed at a time, two of rows by two of
// outputs, so that each one that is loaded is used twice.
#include "amx/amx.hpp"
#include "avx512/tiles.hpp"
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

// Of rows, where there are least values: in each step the sum of the codes times the scale.
struct Sums {
  alignas(64) float of[MOST_TILE_ROWS][STEPS];
};

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
  static constexpr bool LEAST = false;

  INLINE Int8(const uint8_t* tile, const Rounded& in, int half)
      : codes_(tile + static_cast<size_t>(half) * HALF * in.inputs),
        ends_(reinterpret_cast<const float*>(tile + static_cast<size_t>(BLOCK) * in.inputs) + half * HALF) {}

  INLINE void unpack(int step, int i, Panel& to) const {
    unpack_bytes(codes_ + static_cast<size_t>(step) * BLOCK * HALF, BLOCK, to.codes + i * BLOCK * HALF);
  }

  struct Adding {
    INLINE Adding(const Panel&, int) {}
    INLINE __m512 operator()(__m512 total, __m512 sum, float scale, const float*, int) const {
      return _mm512_fmadd_ps(sum, _mm512_set1_ps(scale), total);
    }
  };

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
  static constexpr int DEPTH = Of::DEPTH;
  static constexpr bool LEAST = Of::LEAST;

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
    else if constexpr (Of::CODES_ARE == groups::Coded::SIXES)
      for (int k = 0; k < DEPTH; k += groups::QUARTER)
        groups::with_index<4>((step * DEPTH + k) % BLOCK / groups::QUARTER, [&](auto quarter) {
          unpack_quarter<decltype(quarter)::value>(part + Of::codes(of_part), to.codes + (i * DEPTH + k) * HALF);
        });
    else
      unpack_nibbles(part + Of::codes(of_part), to.codes + i * DEPTH * HALF);
  }

  struct Adding {
    INLINE Adding(const Panel& panel, int step) {
      for (int z = 0; z < PAIR; z++) {
        scales[z] = _mm512_load_ps(panel.scales[step] + 16 * z);
        if (LEAST) least[z] = _mm512_load_ps(panel.least[step] + 16 * z);
      }
    }
    INLINE __m512 operator()(__m512 total, __m512 sum, float scale, const float* codes, int z) const {
      total = _mm512_fmadd_ps(_mm512_mul_ps(sum, _mm512_set1_ps(scale)), scales[z], total);
      return LEAST ? _mm512_fmadd_ps(_mm512_set1_ps(*codes), least[z], total) : total;
    }
    __m512 scales[PAIR], least[PAIR];
  };

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

  template <int INDEX>
  INLINE void unpack_quarter(const uint8_t* from, int8_t* to) const {
    for (int k = 0; k < groups::QUARTER; k += 4, from += 3 * QUADS, to += QUADS)
      for (int i = 0; i < QUADS; i += 64) {
        const __m512i low = _mm512_loadu_si512(from + INDEX / 2 * QUADS + i), high = _mm512_loadu_si512(from + 2 * QUADS + i);
        _mm512_store_si512(to + i, _mm512_sub_epi8(sixes<INDEX>(low, high), _mm512_set1_epi8(Of::ZERO)));
      }
  }

  const uint8_t *parts_, *behind_;
  int half_;
};

// Of a row, `steps` of DEPTH inputs from `first` on.
template <int DEPTH>
INLINE void sum_codes(const Rounded& row, int first, int steps, float* to) {
  constexpr int OF_BLOCK = BLOCK / DEPTH;
  const __m512i blocks = _mm512_srli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), OF_BLOCK / 2);
  const int32_t* offsets = (DEPTH == GROUP ? row.offsets : row.fine) + first;
  for (int i = 0; i < steps; i += 16) {
    const __mmask16 there = kvcast::first(steps - i), blocks_there = kvcast::first((steps - i) / OF_BLOCK);
    const __m512 scales = _mm512_permutexvar_ps(blocks, _mm512_maskz_loadu_ps(blocks_there, row.scales + (first + i) / OF_BLOCK));
    const __m512 offset = _mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(there, offsets + i));
    _mm512_store_ps(to + i, _mm512_mul_ps(_mm512_mul_ps(offset, scales), _mm512_set1_ps(-1 / 128.f)));
  }
}

// AMX's tiles: sums of the first 16 rows (0, 1) and of the others (2, 3), rows' codes (4, 5), weights (6, 7). Setting
// their shapes takes as long as a step, so they are kept while the number of rows is unchanged.
template <int DEPTH>
class TileShapes {
 public:
  TileShapes() = default;
  ~TileShapes() { release(); }
  TileShapes(const TileShapes&) = delete;
  TileShapes& operator=(const TileShapes&) = delete;

  void set(int rows) {
    if (rows == rows_) return;
    rows_ = rows;
    Shapes shapes;
    const int first = std::min(rows, ROWS), others = rows - first;
    for (int z = 0; z < 2; z++) {
      shapes.set(z, first, ROW_BYTES);
      shapes.set(6 + z, DEPTH / 4, ROW_BYTES);
      if (others > 0) shapes.set(2 + z, others, ROW_BYTES);
    }
    shapes.set(4, first, DEPTH);
    if (others > 0) shapes.set(5, others, DEPTH);
    set_shapes(shapes);
  }

 private:
  int rows_ = 0;
};

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

// Some rows of a slice, and where their results go.
struct Strip {
  const Rounded in;
  int rows, begin, steps;
  const float (*sums)[STEPS];
  float* out;  // [rows, BLOCK]
};

// The totals of half a tile after a step with these sums. Before the first step there were none.
template <bool IS_FIRST, bool IS_LAST, class Of>
INLINE void add_step(const Of& of, const Strip& strip, const int32_t* sums, const Panel& panel, int step) {
  const typename Of::Adding add(panel, step);
  const int blocks = strip.in.inputs / BLOCK;
  const float* scale = strip.in.scales + (strip.begin + step * Of::DEPTH) / BLOCK;
  for (int i = 0; i < strip.rows; i++, scale += blocks)
    for (int z = 0; z < PAIR; z++) {
      float* const to = strip.out + i * BLOCK + 16 * z;
      const __m512 before = IS_FIRST ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + i * HALF + 16 * z));
      const __m512 total = add(before, sum, *scale, strip.sums[i] + step, z);
      _mm512_storeu_ps(to, IS_LAST ? of.end(z, total) : total);
    }
}

template <class Of>
INLINE void multiply_strip(const Of& of, const Panel& panel, const Strip& strip) {
  alignas(64) int32_t sums[ROWS_AT_ONCE * HALF];
  const int inputs = strip.in.inputs;
  const bool begins = strip.begin == 0, ends = strip.begin + strip.steps * Of::DEPTH == inputs;
  for (int step = 0; step < strip.steps; step++) {
    const int8_t* codes = strip.in.codes + strip.begin + step * Of::DEPTH;
    multiply_step(panel.codes + step * Of::DEPTH * HALF, codes, inputs, strip.rows > ROWS, sums);
    const bool is_first = begins && step == 0, is_last = ends && step == strip.steps - 1;
    if (is_first && is_last)
      add_step<true, true>(of, strip, sums, panel, step);
    else if (is_first)
      add_step<true, false>(of, strip, sums, panel, step);
    else if (is_last)
      add_step<false, true>(of, strip, sums, panel, step);
    else
      add_step<false, false>(of, strip, sums, panel, step);
  }
}

template <class Of>
void multiply_slice(const uint8_t* tile, const Rounded& in, int begin, int end, int rows, TileShapes<Of::DEPTH>& shapes, float* out) {
  Panel panel;
  Sums sums;
  const int first = begin / Of::DEPTH, steps = (end - begin) / Of::DEPTH;
  for (int m = 0; Of::LEAST && m < rows; m++) sum_codes<Of::DEPTH>(in.row(m), first, steps, sums.of[m]);
  for (int half = 0; half < 2; half++) {
    const Of of(tile, in, half);
    for (int step = 0; step < steps; step++) of.unpack(first + step, step, panel);
    for (int m = 0; m < rows; m += ROWS_AT_ONCE) {
      const int count = std::min(ROWS_AT_ONCE, rows - m);
      shapes.set(count);
      multiply_strip(of, panel, Strip{in.row(m), count, begin, steps, sums.of + m, out + m * BLOCK + half * HALF});
    }
  }
}

template <class Of>
void multiply(const uint8_t* tile, const Operand& operand, int inputs, int rows, float* out) {
  if (rows <= FEW) {
    for (int m = 0; m < rows; m += MOST_ROWS)
      avx512_gemm.of(Of::FORMAT).multiply(tile, operand.row(m), inputs, std::min(MOST_ROWS, rows - m), out + m * BLOCK);
    return;
  }
  const Rounded& in = operand.rounded;
  TileShapes<Of::DEPTH> shapes;
  for (int begin = 0; begin < in.inputs; begin += SLICE)
    multiply_slice<Of>(tile, in, begin, std::min(begin + SLICE, in.inputs), rows, shapes, out);
}

}  // namespace

AVX512_END

namespace {

// The same tiles, and more rows.
template <class Of>
Tiles tiles() {
  Tiles same = avx512_gemm.of(Of::FORMAT);
  same.multiply = multiply<Of>;
  same.most_rows = MOST_TILE_ROWS;
  return same;
}

}  // namespace

const Gemm amx_gemm = {
    avx512_gemm.round,
    avx512_gemm.finish,
    {
        avx512_gemm.of(Format::F32),
        tiles<Int8>(),
        tiles<Groups<Format::INT8_BLOCK, Int8Block>>(),
        tiles<Groups<Format::INT4_MIN, Int4Min>>(),
        tiles<Groups<Format::INT4_TABLE, Int4Table>>(),
        tiles<Groups<Format::INT4_LARGE, Int4Large>>(),
        tiles<Groups<Format::INT4_TABLE_LARGE, Int4TableLarge>>(),
        tiles<Groups<Format::INT8_LARGE_MIN, Int8LargeMin>>(),
        tiles<Groups<Format::INT6_BLOCK, Int6Block>>(),
        tiles<Groups<Format::INT6_LARGE, Int6Large>>(),
        tiles<Groups<Format::INT6_LARGE_MIN, Int6LargeMin>>(),
        tiles<Groups<Format::INT4_TABLE_FINE, Int4TableFine>>(),
        tiles<Groups<Format::INT4_ZERO_POINT, Int4ZeroPoint>>(),
    },
};

}  // namespace kvcast
#endif
