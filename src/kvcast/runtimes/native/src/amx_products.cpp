// Products of many rows with AMX, on AVX-512's own tiles and with its results, bit for bit: sums of integers are
// exact in any order, and they become floats a block at a time as there. So a few rows are left to AVX-512,
// and fp32 altogether.
//
// Weights are unpacked once for all rows. Totals of 16 rows and 16 outputs stay in registers; a block's sums come
// to them through memory while AMX multiplies the next block.
#include "amx.hpp"
#include "avx512_tiles.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;

constexpr int SLICE = 512;  // inputs whose weights are unpacked at once
constexpr int STEPS = SLICE / FINE;  // at most: a step is a block, or a group
constexpr int QUADS = 4 * HALF;  // bytes of four inputs of a half

// Some inputs of a tile, as AMX wants them.
struct Weights {
  alignas(64) int8_t codes[VECTORS * SLICE * 16];  // [z, inputs / 4, 16, 4]
  int inputs;

  // Four inputs of a half.
  INLINE void set(int half, int k, __m512i first, __m512i second) {
    int8_t* to = codes + (2 * half * inputs + k) * 16;
    _mm512_store_si512(to, first);
    _mm512_store_si512(to + inputs * 16, second);
  }
};

// Of up to 16 rows: in each step the scale, and where there are least values the sum of the codes times it.
struct Strip {
  alignas(64) float scales[STEPS][ROWS], sums[STEPS][ROWS];
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

INLINE void unpack_bytes(const uint8_t* from, int half, int k, int count, Weights& to) {
  for (int i = 0; i < count; i += 4, from += QUADS)
    to.set(half, k + i, with_sign(_mm512_loadu_si512(from)), with_sign(_mm512_loadu_si512(from + ROW_BYTES)));
}

// A format's tile: its weights in steps of DEPTH inputs, the factors of rows and outputs in each step, and how sums add
// up to totals.
struct Int8 {
  static constexpr Format FORMAT = Format::INT8;
  static constexpr int DEPTH = BLOCK;

  const uint8_t* tile;
  const Rounded& in;

  INLINE void unpack(int step, int half, int k, Weights& to) const {
    unpack_bytes(tile + (static_cast<size_t>(half) * in.inputs + step * BLOCK) * HALF, half, k, BLOCK, to);
  }
  INLINE void factors(int m, __mmask16 there, int step, float* scales, float*) const {
    _mm512_store_ps(scales, floats_of_rows(in.scales, m, there, step, in.inputs / BLOCK));
  }

  struct Adding {
    INLINE __m512 operator()(__m512 total, __m512 sum, const float* scale, const float*) const {
      return _mm512_fmadd_ps(sum, _mm512_set1_ps(*scale), total);
    }
  };
  INLINE Adding adding(int, int) const { return {}; }

  INLINE __m512 end(int z, __m512 total) const {
    const float* scales = reinterpret_cast<const float*>(tile + static_cast<size_t>(BLOCK) * in.inputs) + 16 * z;
    return _mm512_fmadd_ps(total, _mm512_loadu_ps(scales), _mm512_loadu_ps(scales + BLOCK));
  }
};

template <Format OF_FORMAT, class Of>
struct Groups {
  static constexpr Format FORMAT = OF_FORMAT;
  static constexpr int DEPTH = Of::DEPTH, OF_BLOCK = BLOCK / DEPTH;

  const uint8_t* tile;
  const Rounded& in;

  INLINE const uint8_t* part(int half, int step) const {
    return tile + half * groups::strip_bytes<Of>(in.inputs) + step / Of::STEPS * Of::EACH;
  }

  INLINE void unpack(int step, int half, int k, Weights& to) const {
    const uint8_t* from = part(half, step) + Of::codes(step % Of::STEPS);
    if constexpr (Of::CODES_ARE == groups::Coded::BYTES) {
      unpack_bytes(from, half, k, DEPTH, to);
      return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    __m512i numbers = low;
    if (Of::CODES_ARE == groups::Coded::TABLE)
      numbers = with_sign(_mm512_loadu_si512(groups::table_of(tile, groups::strip_bytes<Of>(in.inputs))));
    const auto number = [&](__m512i bits) {
      const __m512i nibbles = _mm512_and_si512(bits, low);
      return Of::CODES_ARE == groups::Coded::TABLE ? _mm512_shuffle_epi8(numbers, nibbles) : nibbles;
    };
    for (int i = 0; i < DEPTH / 2; i += 4, from += QUADS) {
      const __m512i first = _mm512_loadu_si512(from), second = _mm512_loadu_si512(from + ROW_BYTES);
      to.set(half, k + i, number(first), number(second));
      to.set(half, k + i + DEPTH / 2, number(_mm512_srli_epi16(first, 4)), number(_mm512_srli_epi16(second, 4)));
    }
  }

  INLINE void factors(int m, __mmask16 there, int step, float* to, float* sums) const {
    const __m512 scale = floats_of_rows(in.scales, m, there, step / OF_BLOCK, in.inputs / BLOCK);
    _mm512_store_ps(to, scale);
    if (!Of::LEAST) return;
    const int32_t* offsets = DEPTH == GROUP ? in.offsets : in.fine;
    const __m512 offset = _mm512_cvtepi32_ps(of_rows(offsets, m, there, step, in.inputs / DEPTH));
    _mm512_store_ps(sums, _mm512_mul_ps(_mm512_mul_ps(offset, scale), _mm512_set1_ps(-1 / 128.f)));
  }

  struct Adding {
    __m512 d, least;
    INLINE __m512 operator()(__m512 total, __m512 sum, const float* scale, const float* codes) const {
      total = _mm512_fmadd_ps(_mm512_mul_ps(sum, _mm512_set1_ps(*scale)), d, total);
      return Of::LEAST ? _mm512_fmadd_ps(_mm512_set1_ps(*codes), least, total) : total;
    }
  };
  INLINE Adding adding(int z, int step) const {
    const uint8_t* at = part(z / PAIR, step);
    const int i = step % Of::STEPS;
    return {Of::scale(at, i, z % PAIR), Of::LEAST ? Of::least(at, i, z % PAIR) : _mm512_setzero_ps()};
  }

  INLINE __m512 end(int z, __m512 total) const {
    const uint8_t* bias = tile + 2 * groups::strip_bytes<Of>(in.inputs);
    return _mm512_add_ps(total, _mm512_loadu_ps(reinterpret_cast<const float*>(bias) + 16 * z));
  }
};

// AMX's tiles: a block's sums (0), rows' codes (1), weights (2).
void set_strip(int rows, int depth) {
  Shapes shapes;
  shapes.set(0, rows, ROW_BYTES);
  shapes.set(1, rows, depth);
  shapes.set(2, depth / 4, ROW_BYTES);
  set_shapes(shapes);
}

// The blocks of a strip and all outputs, one after the other.
template <class Of>
class Blocks {
 public:
  INLINE Blocks(const Weights& weights, const int8_t* codes, size_t stride, int steps)
      : weights_(weights.codes), codes_(codes), stride_(stride), steps_(steps), left_(VECTORS * steps) {}

  INLINE void multiply(int32_t* sums) {
    if (left_ == 0) return;
    load<1>(codes_ + step_ * Of::DEPTH, stride_);
    load<2>(weights_, ROW_BYTES);
    zero<0>();
    dot_signed<0, 1, 2>();
    amx_tiles::store<0>(sums, ROW_BYTES);
    left_--;
    weights_ += Of::DEPTH * 16;
    if (++step_ == steps_) step_ = 0;
  }

 private:
  const int8_t *weights_, *codes_;
  size_t stride_;
  int steps_, left_, step_ = 0;
};

// out [rows, BLOCK]: totals of a strip, over `steps` from `first` on.
template <class Of>
INLINE void multiply_strip(const Of& of, Blocks<Of> blocks, const Strip& strip, int first, int steps, int rows, bool ends,
                           float* out, int32_t* now, int32_t* next) {
  blocks.multiply(now);
  for (int z = 0; z < VECTORS; z++, out += 16) {
    __m512 totals[ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++)
      totals[m] = first > 0 && m < rows ? _mm512_loadu_ps(out + m * BLOCK) : _mm512_setzero_ps();
    for (int step = 0; step < steps; step++) {
      blocks.multiply(next);
      const auto added = of.adding(z, first + step);
#pragma GCC unroll 16
      for (int m = 0; m < ROWS; m++)
        totals[m] = added(totals[m], _mm512_cvtepi32_ps(_mm512_load_si512(now + m * 16)), strip.scales[step] + m,
                          strip.sums[step] + m);
      std::swap(now, next);
    }
    // A loop to `rows` would keep the totals in memory all the time.
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++)
      if (m < rows) _mm512_storeu_ps(out + m * BLOCK, ends ? of.end(z, totals[m]) : totals[m]);
  }
}

template <class Of>
void multiply_slice(const Of& of, int begin, int end, int rows, float* out) {
  Weights weights;
  weights.inputs = end - begin;
  Strip strip;
  alignas(64) int32_t sums[2][ROWS * 16] = {};
  const int first = begin / Of::DEPTH, steps = (end - begin) / Of::DEPTH;
  for (int half = 0; half < 2; half++)
    for (int step = 0; step < steps; step++) of.unpack(first + step, half, step * Of::DEPTH, weights);
  for (int m = 0; m < rows; m += ROWS) {
    const int count = std::min(ROWS, rows - m);
    for (int step = 0; step < steps; step++)
      of.factors(m, kvcast::first(count), first + step, strip.scales[step], strip.sums[step]);
    if (m == 0 || count < ROWS) set_strip(count, Of::DEPTH);
    const Blocks<Of> blocks(weights, of.in.codes + static_cast<size_t>(m) * of.in.inputs + begin, of.in.inputs, steps);
    multiply_strip(of, blocks, strip, first, steps, count, end == of.in.inputs, out + m * BLOCK, sums[0], sums[1]);
  }
}

template <class Of>
void multiply(const uint8_t* tile, const Operand& operand, int inputs, int rows, float* out) {
  if (rows <= MOST_ROWS) return avx512_products.of(Of::FORMAT).multiply(tile, operand, inputs, rows, out);
  const Of of{tile, operand.rounded};
  for (int begin = 0; begin < of.in.inputs; begin += SLICE)
    multiply_slice(of, begin, std::min(begin + SLICE, of.in.inputs), rows, out);
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
