// GEMM and GEMV with NEON: fp32, int8 and int4.
//
// Tiles are four strips of STRIP outputs each (`strips.hpp`). A strip of codes is [k / 8, STRIP, 8], so a vector
// holds 8 inputs of two outputs, which i8mm multiplies with two rows, and dot products with one.
#include "halves.hpp"
#include "neon/vec.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {

// As encoded words, since compilers and assemblers accept these instructions only if enabled for the whole file. The
// first lines map register names to their indices.
__asm__(
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    ".equ kvcast_v\\n, \\n\n"
    ".endr\n");
#define NEON_PRODUCT(code) \
  __asm__(".inst " code " + (kvcast_%1 << 5) + (kvcast_%2 << 16) + kvcast_%0" : "+w"(sum) : "w"(a), "w"(b))

namespace {

constexpr int STRIPS = BLOCK / STRIP;
constexpr int FLOATS = STRIP;
constexpr int SIDE = 8;         // adjacent inputs of an output
constexpr uint8_t SIGNS = 0;
constexpr int TWOS = STRIP / 2;  // vectors of a strip's SIDE inputs

// Adds to each of four sums four products of a with b.
INLINE int32x4_t sdot(int32x4_t sum, int8x16_t a, int8x16_t b) {
  NEON_PRODUCT("0x4e809400");
  return sum;
}

// Adds a [2, 8] times b [2, 8] transposed to sums [2, 2].
INLINE int32x4_t smmla(int32x4_t sum, int8x16_t a, int8x16_t b) {
  NEON_PRODUCT("0x4e80a400");
  return sum;
}

INLINE int8x8_t eight(const int8_t* codes) { return vld1_s8(codes); }

// Rows of codes, as a strip's are multiplied with them: `LINES` vectors of each SIDE inputs, and as many sums for
// each vector of the strip. `of` gives the sums of a row and four outputs.
template <int ROWS>
struct Dots {
  static constexpr int LINES = ROWS;

  static INLINE int8x16_t load(const int8_t* codes, size_t stride, int line) {
    const int8x8_t row = eight(codes + line * stride);
    return vcombine_s8(row, row);
  }
  static INLINE int32x4_t add(int32x4_t sum, int8x16_t codes, int8x16_t weights) { return sdot(sum, codes, weights); }
  static INLINE int32x4_t of(const int32x4_t sums[LINES][TWOS], int row, int z) {
    return vpaddq_s32(sums[row][2 * z], sums[row][2 * z + 1]);
  }
};

template <int ROWS>
struct Matrices {
  static constexpr int LINES = (ROWS + 1) / 2;

  // A last row that is alone is taken twice.
  static INLINE int8x16_t load(const int8_t* codes, size_t stride, int line) {
    return vcombine_s8(eight(codes + 2 * line * stride), eight(codes + std::min(2 * line + 1, ROWS - 1) * stride));
  }
  static INLINE int32x4_t add(int32x4_t sum, int8x16_t codes, int8x16_t weights) { return smmla(sum, codes, weights); }
  static INLINE int32x4_t of(const int32x4_t sums[LINES][TWOS], int row, int z) {
    const int64x2_t low = vreinterpretq_s64_s32(sums[row / 2][2 * z]);
    const int64x2_t high = vreinterpretq_s64_s32(sums[row / 2][2 * z + 1]);
    return vreinterpretq_s32_s64(row % 2 ? vtrn2q_s64(low, high) : vtrn1q_s64(low, high));
  }
};

INLINE void round_vectors(const float32x4_t v[VECTORS], const Rounded& to) {
  // Magnitudes compare as integers in the order of the floats, and NaN is above them all, so it is kept.
  uint32x4_t most = vdupq_n_u32(0);
  for (int z = 0; z < VECTORS; z++) most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(v[z])));
  const uint32_t bits = vmaxvq_u32(most);
  float m;
  std::memcpy(&m, &bits, sizeof m);
  const float32x4_t inverse = vdupq_n_f32(m >= SMALLEST ? 127.f / m : 0.f), least = vdupq_n_f32(-127.f);
  for (int g = 0; g < BLOCK / FINE; g++) {
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < FINE; i += SIDE) {
      const float32x4_t* x = v + (g * FINE + i) / LANES;
      // NaN becomes -127.
      const int32x4_t low = vcvtnq_s32_f32(vmaxnmq_f32(vmulq_f32(x[0], inverse), least));
      const int32x4_t high = vcvtnq_s32_f32(vmaxnmq_f32(vmulq_f32(x[1], inverse), least));
      sum = vaddq_s32(sum, vaddq_s32(low, high));
      vst1_s8(to.codes + g * FINE + i, vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high))));
    }
    to.fine[g] = -128 * vaddvq_s32(sum);
  }
  for (int g = 0; g < BLOCK / GROUP; g++) to.offsets[g] = to.fine[2 * g] + to.fine[2 * g + 1];
  *to.scales = m < SMALLEST ? 0.f : m / 127.f;
}

void round(const float* x, int count, const Rounded& to) {
  float32x4_t v[VECTORS];
  for (int z = 0; z < VECTORS; z++) v[z] = load(x + LANES * z, count - LANES * z);
  round_vectors(v, to);
}

void finish(const float* x, int count, const Epilogue& epilogue) {
  with_activation(epilogue.activation, [&](auto f) {
    float32x4_t v[VECTORS];
    for (int z = 0; z < VECTORS; z++) {
      const int there = count - LANES * z;
      v[z] = there > 0 ? f(load(x + LANES * z, there)) : vdupq_n_f32(0.f);
      if (epilogue.residual) v[z] = vaddq_f32(v[z], load(epilogue.residual + LANES * z, there));
      if (epilogue.out) store(epilogue.out + LANES * z, there, v[z]);
    }
    if (epilogue.to) round_vectors(v, *epilogue.to);
  });
}

// Four values, from z * 4 on.
INLINE Vector halves(const uint8_t* at, int z) { return load(reinterpret_cast<const uint16_t*>(at) + z * LANES); }
INLINE Vector signed_bytes(const uint8_t* at, int z) { return load(reinterpret_cast<const int8_t*>(at) + z * LANES); }
INLINE Vector bytes(const uint8_t* at, int z) {
  uint8_t numbers[8] = {};
  std::memcpy(numbers, at + z * LANES, LANES);
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(numbers)))));
}

#include "vec/strips.hpp"

namespace f32 {

template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, int inputs, float* out) {
  const float* weights = reinterpret_cast<const float*>(tile);
  const size_t apart = static_cast<size_t>(inputs) * STRIP;
  const float* bias = weights + STRIPS * apart;
  for (int strip = 0; strip < STRIPS; strip++) {
    float32x4_t sums[ROWS][QUADS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) sums[m][z] = vdupq_n_f32(0.f);
    multiply_strip<ROWS>(weights + strip * apart, inputs, in.x, in.stride, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) {
        const int n = strip * STRIP + z * LANES;
        vst1q_f32(out + m * BLOCK + n, vaddq_f32(sums[m][z], load(bias + n)));
      }
  }
}

void multiply_any(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  using Multiply = void (*)(const uint8_t*, const Operand&, int, float*);
  constexpr Multiply BY_ROWS[MOST_ROWS] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};
  BY_ROWS[rows - 1](tile, in, inputs, out);
}

}  // namespace f32

template <class Sums>
INLINE void zero(int32x4_t sums[Sums::LINES][TWOS]) {
  for (int m = 0; m < Sums::LINES; m++)
    for (int z = 0; z < TWOS; z++) sums[m][z] = vdupq_n_s32(0);
}

// `count` inputs of a strip x codes.
template <class Sums>
INLINE void dot_codes(const uint8_t* weights, int count, const int8_t* codes, size_t stride,
                      int32x4_t sums[Sums::LINES][TWOS]) {
  zero<Sums>(sums);
#pragma GCC unroll 1  // else loads are taken so early that sums leave their registers
  for (int k = 0; k < count; k += SIDE, weights += SIDE * STRIP) {
    int8x16_t x[Sums::LINES];
    for (int m = 0; m < Sums::LINES; m++) x[m] = Sums::load(codes + k, stride, m);
    for (int z = 0; z < TWOS; z++) {
      const int8x16_t w = vreinterpretq_s8_u8(vld1q_u8(weights + z * 16));
      for (int m = 0; m < Sums::LINES; m++) sums[m][z] = Sums::add(sums[m][z], x[m], w);
    }
  }
}

namespace int8 {

struct Strip {
  static size_t bytes(int inputs) { return static_cast<size_t>(STRIP) * inputs; }

  template <int ROWS, class Sums>
  static INLINE void multiply(const uint8_t* weights, const Rounded& in, const float* scales, const uint8_t*, float* out) {
    const int blocks = in.inputs / BLOCK;
    float32x4_t totals[ROWS][QUADS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) totals[m][z] = vdupq_n_f32(0.f);
    for (int b = 0; b < blocks; b++, weights += BLOCK * STRIP) {
      int32x4_t sums[Sums::LINES][TWOS];
      dot_codes<Sums>(weights, BLOCK, in.codes + b * BLOCK, in.inputs, sums);
      for (int m = 0; m < ROWS; m++) {
        const float32x4_t scale = vld1q_dup_f32(in.scales + m * blocks + b);
        for (int z = 0; z < QUADS; z++)
          totals[m][z] = vfmaq_f32(totals[m][z], vcvtq_f32_s32(Sums::of(sums, m, z)), scale);
      }
    }
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++)
        vst1q_f32(out + m * BLOCK + z * LANES,
                  vfmaq_f32(load(scales + BLOCK + z * LANES), totals[m][z], load(scales + z * LANES)));
  }
};

}  // namespace int8

namespace groups {

// A group of codes of 4 bits x codes. `numbers`: of a table.
template <class Of, class Sums>
INLINE void dot_nibbles(const uint8_t* weights, int8x16_t numbers, const int8_t* codes, size_t stride,
                        int32x4_t sums[Sums::LINES][TWOS]) {
  const auto number = [&](uint8x16_t nibbles) {
    return Of::CODES_ARE == Coded::TABLE ? vqtbl1q_s8(numbers, nibbles) : vreinterpretq_s8_u8(nibbles);
  };
  zero<Sums>(sums);
  for (int k = 0; k < Of::DEPTH / 2; k += SIDE, weights += SIDE * STRIP) {
    __asm__ volatile("" : "+r"(weights), "+r"(codes));  // likewise: two rounds become one whatever one asks for
    int8x16_t low[Sums::LINES], high[Sums::LINES];
    for (int m = 0; m < Sums::LINES; m++) {
      low[m] = Sums::load(codes + k, stride, m);
      high[m] = Sums::load(codes + Of::DEPTH / 2 + k, stride, m);
    }
    for (int z = 0; z < TWOS; z++) {
      const uint8x16_t both = vld1q_u8(weights + z * 16);
      const int8x16_t w = number(vandq_u8(both, vdupq_n_u8(15))), v = number(vshrq_n_u8(both, 4));
      for (int m = 0; m < Sums::LINES; m++) sums[m][z] = Sums::add(Sums::add(sums[m][z], low[m], w), high[m], v);
    }
  }
}

// A group of a block of codes of 6 bits, from `quarter` on, x codes.
template <class Of, class Sums>
INLINE void dot_sixes(const uint8_t* weights, int quarter, const int8_t* codes, size_t stride, int32x4_t sums[Sums::LINES][TWOS]) {
  constexpr int SIDES = SIDE * STRIP;
  zero<Sums>(sums);
  for (int end = quarter + Of::DEPTH / QUARTER; quarter < end; quarter++) {
    const int8x16_t down = vdupq_n_s8(static_cast<int8_t>(-4 * (quarter % 2))), turn = vdupq_n_s8(static_cast<int8_t>(4 - 2 * quarter));
    const uint8_t *low = weights + quarter / 2 * SIDES, *high = weights + 2 * SIDES;
#pragma GCC unroll 1
    for (int k = 0; k < QUARTER; k += SIDE, low += 3 * SIDES, high += 3 * SIDES, codes += SIDE) {
      int8x16_t x[Sums::LINES];
      for (int m = 0; m < Sums::LINES; m++) x[m] = Sums::load(codes, stride, m);
      for (int z = 0; z < TWOS; z++) {
        const uint8x16_t nibbles = vandq_u8(vshlq_u8(vld1q_u8(low + z * 16), down), vdupq_n_u8(15));
        const uint8x16_t bits = vandq_u8(vshlq_u8(vld1q_u8(high + z * 16), turn), vdupq_n_u8(0x30));
        const int8x16_t w = vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(nibbles, bits)), vdupq_n_s8(Of::ZERO));
        for (int m = 0; m < Sums::LINES; m++) sums[m][z] = Sums::add(sums[m][z], x[m], w);
      }
    }
  }
}

template <class Of>
struct Strip {
  static size_t bytes(int inputs) { return strip_bytes<Of>(inputs); }

  template <int ROWS, class Sums>
  static INLINE void multiply(const uint8_t* part, const Rounded& in, const float* bias, const uint8_t* table, float* out) {
    constexpr int OF_BLOCK = BLOCK / Of::DEPTH;
    const int blocks = in.inputs / BLOCK, steps = blocks * OF_BLOCK;
    const int32_t* offsets = Of::DEPTH == GROUP ? in.offsets : in.fine;
    int8x16_t numbers = vdupq_n_s8(0);
    if (Of::CODES_ARE == Coded::TABLE) numbers = vld1q_s8(reinterpret_cast<const int8_t*>(table));
    float32x4_t totals[ROWS][QUADS];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++) totals[m][z] = vdupq_n_f32(0.f);
    for (int first = 0; first < steps; first += Of::STEPS, part += Of::EACH)
      for (int i = 0; i < Of::STEPS; i++) {
        const int step = first + i;
        const uint8_t* weights = part + Of::codes(i);
        const int8_t* codes = in.codes + step * Of::DEPTH;
        int32x4_t sums[Sums::LINES][TWOS];
        if constexpr (Of::CODES_ARE == Coded::BYTES)
          dot_codes<Sums>(weights, Of::DEPTH, codes, in.inputs, sums);
        else if constexpr (Of::CODES_ARE == Coded::SIXES)
          dot_sixes<Of, Sums>(weights, i % OF_BLOCK * (Of::DEPTH / QUARTER), codes, in.inputs, sums);
        else
          dot_nibbles<Of, Sums>(weights, numbers, codes, in.inputs, sums);
        for (int m = 0; m < ROWS; m++) {
          const float s = in.scales[m * blocks + step / OF_BLOCK];
          const float of_codes = static_cast<float>(offsets[m * steps + step]) * s * (-1 / 128.f);
          for (int z = 0; z < QUADS; z++) {
            const float32x4_t scaled = vmulq_n_f32(vcvtq_f32_s32(Sums::of(sums, m, z)), s);
            totals[m][z] = vfmaq_f32(totals[m][z], scaled, Of::scale(part, i, z));
            if (Of::LEAST) totals[m][z] = vfmaq_f32(totals[m][z], vdupq_n_f32(of_codes), Of::least(part, i, z));
          }
        }
      }
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < QUADS; z++)
        vst1q_f32(out + m * BLOCK + z * LANES, vaddq_f32(totals[m][z], load(bias + z * LANES)));
  }
};

}  // namespace groups

// Consecutive strips, and behind them the floats of each output, given as the floats of a strip's first, and a table
// (if any).
template <class Strip, int ROWS, class Sums>
void multiply(const uint8_t* tile, const Operand& in, float* out) {
  const size_t strip = Strip::bytes(in.rounded.inputs);
  const float* last = reinterpret_cast<const float*>(tile + STRIPS * strip);
  const uint8_t* table = groups::table_of(tile, strip);
  for (int i = 0; i < STRIPS; i++)
    Strip::template multiply<ROWS, Sums>(tile + i * strip, in.rounded, last + i * STRIP, table, out + i * STRIP);
}

using Multiply = void (*)(const uint8_t*, const Operand&, float*);

// The sums of three rows fit into the registers, and with i8mm of six.
template <class Strip>
void multiply_dots(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  constexpr Multiply BY_ROWS[] = {multiply<Strip, 1, Dots<1>>, multiply<Strip, 2, Dots<2>>, multiply<Strip, 3, Dots<3>>};
  const int at_once = rows <= 3 ? rows : (rows + 1) / 2;
  for (int m = 0; m < rows; m += at_once)
    BY_ROWS[std::min(at_once, rows - m) - 1](tile, in.row(m), out + m * BLOCK);
}

template <class Strip>
void multiply_matrices(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  constexpr Multiply BY_ROWS[MOST_ROWS] = {multiply<Strip, 1, Dots<1>>,     multiply<Strip, 2, Matrices<2>>,
                                           multiply<Strip, 3, Matrices<3>>, multiply<Strip, 4, Matrices<4>>,
                                           multiply<Strip, 5, Matrices<5>>, multiply<Strip, 6, Matrices<6>>};
  BY_ROWS[rows - 1](tile, in, out);
}

// A set's tiles of the formats of groups; `multiply` is its function for a kind of strip.
#define GROUP_TILES(multiply)                                                                                          \
  {groups::bytes_of<Int8Block>, groups::pack<Int8Block>, groups::unpack<Int8Block>, multiply<groups::Strip<Int8Block>>}, \
  {groups::bytes_of<Int4Min>, groups::pack<Int4Min>, groups::unpack<Int4Min>, multiply<groups::Strip<Int4Min>>},         \
  {groups::bytes_of<Int4Table>, groups::pack<Int4Table>, groups::unpack<Int4Table>, multiply<groups::Strip<Int4Table>>}, \
  {groups::bytes_of<Int4Large>, groups::pack<Int4Large>, groups::unpack<Int4Large>, multiply<groups::Strip<Int4Large>>}, \
  {groups::bytes_of<Int4TableLarge>, groups::pack<Int4TableLarge>, groups::unpack<Int4TableLarge>,                     \
   multiply<groups::Strip<Int4TableLarge>>},                                                                           \
  {groups::bytes_of<Int8LargeMin>, groups::pack<Int8LargeMin>, groups::unpack<Int8LargeMin>,                           \
   multiply<groups::Strip<Int8LargeMin>>},                                                                             \
  {groups::bytes_of<Int6Block>, groups::pack<Int6Block>, groups::unpack<Int6Block>, multiply<groups::Strip<Int6Block>>}, \
  {groups::bytes_of<Int6Large>, groups::pack<Int6Large>, groups::unpack<Int6Large>, multiply<groups::Strip<Int6Large>>}, \
  {groups::bytes_of<Int6LargeMin>, groups::pack<Int6LargeMin>, groups::unpack<Int6LargeMin>,                           \
   multiply<groups::Strip<Int6LargeMin>>},                                                                             \
  {groups::bytes_of<Int4TableFine>, groups::pack<Int4TableFine>, groups::unpack<Int4TableFine>,                        \
   multiply<groups::Strip<Int4TableFine>>},                                                                            \
  {groups::bytes_of<Int4ZeroPoint>, groups::pack<Int4ZeroPoint>, groups::unpack<Int4ZeroPoint>,                        \
   multiply<groups::Strip<Int4ZeroPoint>>}

constexpr int SUMS = 24;  // more than four units have in flight

template <class Sum, class Add>
void add_often(int64_t turns, const Add& add) {
  Sum sums[SUMS] = {};
  for (int64_t turn = 0; turn < turns; turn++)
#pragma GCC unroll 24
    for (int i = 0; i < SUMS; i++) {
      sums[i] = add(sums[i]);
      __asm__ volatile("" : "+w"(sums[i]));  // or all would be the same sum
    }
}

double dot_int8(int64_t turns) {
  const int8x16_t x = vdupq_n_s8(1);
  add_often<int32x4_t>(turns, [&](int32x4_t sum) { return sdot(sum, x, x); });
  return 2. * 16 * SUMS * turns;
}

double multiply_matrices_int8(int64_t turns) {
  const int8x16_t x = vdupq_n_s8(1);
  add_often<int32x4_t>(turns, [&](int32x4_t sum) { return smmla(sum, x, x); });
  return 2. * 32 * SUMS * turns;
}

double multiply_fp32(int64_t turns) {
  const float32x4_t x = vdupq_n_f32(1);
  add_often<float32x4_t>(turns, [&](float32x4_t sum) { return vfmaq_f32(sum, x, x); });
  return 2. * 4 * SUMS * turns;
}

}  // namespace
}  // namespace with_neon

using namespace with_neon;

const Peaks neon_peaks = {dot_int8, multiply_fp32};
const Peaks neon_i8mm_peaks = {multiply_matrices_int8, multiply_fp32};

const Gemm neon_gemm = {
    with_neon::round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply_any},
        {int8::bytes, int8::pack, int8::unpack, multiply_dots<int8::Strip>},
        GROUP_TILES(multiply_dots),
    },
};

const Gemm neon_i8mm_gemm = {
    with_neon::round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply_any},
        {int8::bytes, int8::pack, int8::unpack, multiply_matrices<int8::Strip>},
        GROUP_TILES(multiply_matrices),
    },
};

}  // namespace kvcast
#endif
