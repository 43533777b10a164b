// GEMM and GEMV with AVX-512: fp32, and int8 and int4 with VNNI.
//
// The sums of half a tile for MOST_ROWS rows, of a block in int32 and of all blocks in fp32, fit into the
// registers.
#include "avx512/vec.hpp"
#include "avx512/tiles.hpp"
#include "halves.hpp"
#include "cpuid.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

// The greatest magnitude, in the first lane. As integers, magnitudes have the order of the numbers, and NaN is above
// them all: it is not lost.
INLINE __m128 greatest(const __m512 v[VECTORS]) {
  __m512i most = _mm512_castps_si512(_mm512_abs_ps(v[0]));
#pragma GCC unroll 4
  for (int z = 1; z < VECTORS; z++) most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(v[z])));
  const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  __m128i left = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  left = _mm_max_epi32(left, _mm_shuffle_epi32(left, 0x4e));
  return _mm_castsi128_ps(_mm_max_epi32(left, _mm_shuffle_epi32(left, 0xb1)));
}

INLINE void round_vectors(const __m512 v[VECTORS], const Rounded& to) {
  const __m128 most = greatest(v), smallest = _mm_set_ss(SMALLEST), end = _mm_set_ss(127.f);
  // Of NaN the inverse is 0 and the scale NaN.
  _mm_store_ss(to.scales, _mm_maskz_div_ss(_mm_cmp_ss_mask(most, smallest, _CMP_NLT_UQ), most, end));
  const __m512 inverse = _mm512_broadcastss_ps(_mm_maskz_div_ss(_mm_cmp_ss_mask(most, smallest, _CMP_GE_OQ), end, most));
  __m512i nearest[VECTORS];
#pragma GCC unroll 4
  for (int z = 0; z < VECTORS; z++) nearest[z] = _mm512_cvtps_epi32(_mm512_mul_ps(v[z], inverse));
  // Packing leaves four codes of each vector in each lane. NaN came as the least integer.
  const __m512i in_lanes = _mm512_packs_epi16(_mm512_packs_epi32(nearest[0], nearest[1]), _mm512_packs_epi32(nearest[2], nearest[3]));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i codes = _mm512_max_epi8(_mm512_permutexvar_epi32(order, in_lanes), _mm512_set1_epi8(-127));
  _mm512_storeu_si512(to.codes, codes);
  // -128 * the sums of FINE codes, one per lane.
  __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), codes);
  sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
  sums = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_BADC))), 7);
  const __m128i fine = _mm512_castsi512_si128(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), sums));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to.fine), fine);
  const __m128i pairs = _mm_add_epi32(fine, _mm_shuffle_epi32(fine, 0xb1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to.offsets), _mm_shuffle_epi32(pairs, 0x08));
}
static_assert(BLOCK == 4 * FINE && GROUP == 2 * FINE, "a vector has the codes of a group of the finest");

void round(const float* x, int count, const Rounded& to) {
  __m512 v[VECTORS];
#pragma GCC unroll 4
  for (int z = 0; z < VECTORS; z++) v[z] = _mm512_maskz_loadu_ps(first(count - 16 * z), x + 16 * z);
  round_vectors(v, to);
}

template <class Function>
INLINE void finish_with(Function f, const float* x, int count, const Epilogue& epilogue) {
  const Epilogue ends = epilogue;  // a copy: nothing that is stored changes it
  __mmask16 there[VECTORS];
  __m512 v[VECTORS];
#pragma GCC unroll 4
  for (int z = 0; z < VECTORS; z++) there[z] = first(count - 16 * z);
#pragma GCC unroll 4
  for (int z = 0; z < VECTORS; z++) v[z] = f(_mm512_maskz_loadu_ps(there[z], x + 16 * z));
  if (ends.residual)
#pragma GCC unroll 4
    for (int z = 0; z < VECTORS; z++) v[z] = _mm512_add_ps(v[z], _mm512_maskz_loadu_ps(there[z], ends.residual + 16 * z));
  if (ends.out)
#pragma GCC unroll 4
    for (int z = 0; z < VECTORS; z++) _mm512_mask_storeu_ps(ends.out + 16 * z, there[z], v[z]);
  if (ends.to) round_vectors(v, *ends.to);
}

void finish(const float* x, int count, const Epilogue& epilogue) {
  with_activation(epilogue.activation, [&](auto f) {
    if (count == BLOCK)
      finish_with(f, x, BLOCK, epilogue);
    else
      finish_with(f, x, count, epilogue);
  });
}

// The function for each number of rows.
using Multiply = void (*)(const uint8_t*, const Operand&, int, float*);

namespace f32 {

template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, int inputs, float* out) {
  const float *weights = reinterpret_cast<const float*>(tile), *x = in.x;
  const size_t stride = in.stride;
  __m512 sums[ROWS][VECTORS];
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_setzero_ps();
  for (int k = 0; k < inputs; k++, weights += BLOCK, x++) {
    __m512 w[VECTORS];
    for (int z = 0; z < VECTORS; z++) w[z] = _mm512_loadu_ps(weights + z * 16);
    for (int m = 0; m < ROWS; m++) {
      const __m512 y = _mm512_set1_ps(x[m * stride]);
      for (int z = 0; z < VECTORS; z++) sums[m][z] = _mm512_fmadd_ps(w[z], y, sums[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < VECTORS; z++)
      _mm512_storeu_ps(out + m * BLOCK + z * 16, _mm512_add_ps(sums[m][z], _mm512_loadu_ps(weights + z * 16)));
}

void multiply_any(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  constexpr Multiply MULTIPLY[MOST_ROWS] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};
  MULTIPLY[rows - 1](tile, in, inputs, out);
}

}  // namespace f32

// GCC 12 moves each sum to another register and back around the intrinsic, which halves the speed.
INLINE void dot(__m512i& sum, __m512i weights, __m512i codes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(codes));
}

// Four codes of a row, for all outputs.
INLINE __m512i four(const int8_t* codes) {
  int32_t bits;
  std::memcpy(&bits, codes, 4);
  return _mm512_set1_epi32(bits);
}

// sums += `count` inputs of a half x codes.
template <int ROWS>
INLINE void dot_quads(const uint8_t* weights, int count, const int8_t* codes, size_t stride, __m512i sums[ROWS][PAIR]) {
  for (int k = 0; k < count; k += 4, weights += 4 * HALF) {
    __m512i w[PAIR];
    for (int z = 0; z < PAIR; z++) w[z] = _mm512_loadu_si512(weights + z * 64);
    for (int m = 0; m < ROWS; m++) {
      const __m512i y = four(codes + m * stride + k);
      for (int z = 0; z < PAIR; z++) dot(sums[m][z], w[z], y);
    }
  }
}

// Where several rows are computed between two lines of memory, processors foresee too few lines. Where up to FORESEEN
// are, AMD's foresee enough: to ask for them besides costs a fifth of a row's speed. Intel's do not, as theirs end with
// a page.
template <int ROWS, int FORESEEN, bool INTEL>
INLINE void fetch_weights(const uint8_t* from, size_t count) {
  constexpr int PAGE = 4096;
  if (ROWS > FORESEEN) return fetch_ahead(from, count);
  for (size_t line = 0; INTEL && line < count; line += LINE) __builtin_prefetch(from + PAGE + line);
}

template <int ROWS>
INLINE void zero(__m512 totals[ROWS][PAIR]) {
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) totals[m][z] = _mm512_setzero_ps();
}

namespace int8 {

constexpr int FORESEEN = 4;

template <int ROWS, bool INTEL, bool AGAIN = false>
INLINE void multiply_half(const uint8_t* weights, const Rounded& in, const float* scales, float* out) {
  const int blocks = in.inputs / BLOCK;
  __m512 totals[ROWS][PAIR];
  zero<ROWS>(totals);
  for (int b = 0; b < blocks; b++, weights += BLOCK * HALF) {
    __m512i sums[ROWS][PAIR];
    for (int m = 0; m < ROWS; m++) {
      const int32_t* offsets = in.offsets + (m * blocks + b) * 2;
      for (int z = 0; z < PAIR; z++) sums[m][z] = _mm512_set1_epi32(offsets[0] + offsets[1]);
    }
    if (!AGAIN) fetch_weights<ROWS, FORESEEN, INTEL>(weights, BLOCK * HALF);
    dot_quads<ROWS>(weights, BLOCK, in.codes + b * BLOCK, in.inputs, sums);
    for (int m = 0; m < ROWS; m++) {
      const __m512 scale = _mm512_set1_ps(in.scales[m * blocks + b]);
      for (int z = 0; z < PAIR; z++) totals[m][z] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[m][z]), scale, totals[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++)
      _mm512_storeu_ps(out + m * BLOCK + z * 16, _mm512_fmadd_ps(totals[m][z], _mm512_loadu_ps(scales + z * 16),
                                                                _mm512_loadu_ps(scales + BLOCK + z * 16)));
}

template <int ROWS, bool INTEL, bool AGAIN = false>
void multiply(const uint8_t* tile, const Operand& in, int, float* out) {
  const size_t half = static_cast<size_t>(HALF) * in.rounded.inputs;
  const float* scales = reinterpret_cast<const float*>(tile + 2 * half);
  for (int i = 0; i < 2; i++) multiply_half<ROWS, INTEL, AGAIN>(tile + i * half, in.rounded, scales + i * HALF, out + i * HALF);
}

template <bool INTEL>
constexpr Multiply MULTIPLY[MOST_ROWS] = {multiply<1, INTEL>, multiply<2, INTEL>, multiply<3, false>,
                                          multiply<4, false>, multiply<5, false>, multiply<6, false>};

void multiply_any(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  if (in.again && rows == MOST_ROWS) return multiply<MOST_ROWS, false, true>(tile, in, inputs, out);
  (x86().intel ? MULTIPLY<true> : MULTIPLY<false>)[rows - 1](tile, in, inputs, out);
}

}  // namespace int8

namespace groups {

// sums = a group x codes, of which SIGNS is not yet taken back. `numbers`: of codes of 4 bits.
template <class Of, int ROWS>
INLINE void dot_nibbles(const uint8_t* weights, __m512i numbers, const int8_t* codes, size_t stride,
                        __m512i sums[ROWS][PAIR]) {
  const __m512i low = _mm512_set1_epi8(15);
  const auto number = [&](__m512i nibbles) {
    return Of::CODES_ARE == Coded::TABLE ? _mm512_shuffle_epi8(numbers, nibbles) : nibbles;
  };
  for (int k = 0; k < Of::DEPTH / 2; k += 4, weights += 4 * HALF) {
    __m512i w[PAIR], part[PAIR];
    for (int z = 0; z < PAIR; z++) {
      w[z] = _mm512_loadu_si512(weights + z * 64);
      part[z] = number(_mm512_and_si512(w[z], low));
    }
    for (int m = 0; m < ROWS; m++) {
      const __m512i y = four(codes + m * stride + k);
      for (int z = 0; z < PAIR; z++) dot(sums[m][z], part[z], y);
    }
    for (int z = 0; z < PAIR; z++) part[z] = number(_mm512_and_si512(_mm512_srli_epi16(w[z], 4), low));
    for (int m = 0; m < ROWS; m++) {
      const __m512i y = four(codes + m * stride + k + Of::DEPTH / 2);
      for (int z = 0; z < PAIR; z++) dot(sums[m][z], part[z], y);
    }
  }
}

// sums += four inputs of a quarter of a block of codes of 6 bits x codes.
template <int INDEX, int ROWS>
INLINE void dot_sixes(const __m512i low[PAIR], const __m512i high[PAIR], const int8_t* codes, size_t stride, __m512i sums[ROWS][PAIR]) {
  __m512i w[PAIR];
  for (int z = 0; z < PAIR; z++) w[z] = sixes<INDEX>(low[z], high[z]);
  for (int m = 0; m < ROWS; m++) {
    const __m512i y = four(codes + INDEX * QUARTER + m * stride);
    for (int z = 0; z < PAIR; z++) dot(sums[m][z], w[z], y);
  }
}

INLINE void load_pair(const uint8_t* from, __m512i to[PAIR]) {
  for (int z = 0; z < PAIR; z++) to[z] = _mm512_loadu_si512(from + z * 64);
}

// The sums of a block's groups += the block x codes, in one pass.
template <class Of, int ROWS>
INLINE void dot_block(const uint8_t* weights, const int8_t* codes, size_t stride, __m512i sums[BLOCK / Of::DEPTH][ROWS][PAIR]) {
  constexpr int EACH = Of::DEPTH / QUARTER;
#pragma GCC unroll 1  // processors foresee the lines of an instruction that is repeated: a quarter faster
  for (int k = 0; k < QUARTER; k += 4, weights += 3 * QUADS, codes += 4) {
    __m512i first[PAIR], second[PAIR], high[PAIR];
    load_pair(weights, first);
    load_pair(weights + QUADS, second);
    load_pair(weights + 2 * QUADS, high);
    dot_sixes<0, ROWS>(first, high, codes, stride, sums[0]);
    dot_sixes<1, ROWS>(first, high, codes, stride, sums[1 / EACH]);
    dot_sixes<2, ROWS>(second, high, codes, stride, sums[2 / EACH]);
    dot_sixes<3, ROWS>(second, high, codes, stride, sums[3 / EACH]);
  }
}

// sums += one of a block's groups x codes.
template <class Of, int INDEX, int ROWS>
INLINE void dot_group(const uint8_t* weights, const int8_t* codes, size_t stride, __m512i sums[ROWS][PAIR]) {
  constexpr int EACH = Of::DEPTH / QUARTER, FIRST = INDEX * EACH;
#pragma GCC unroll 1
  for (int k = 0; k < QUARTER; k += 4, weights += 3 * QUADS, codes += 4) {
    __m512i low[PAIR], high[PAIR];
    load_pair(weights + FIRST / 2 * QUADS, low);
    load_pair(weights + 2 * QUADS, high);
    dot_sixes<FIRST, ROWS>(low, high, codes, stride, sums);
    if constexpr (EACH == 2) dot_sixes<FIRST + 1, ROWS>(low, high, codes, stride, sums);
  }
}

// The initial sum of a row's group, whose offset is -128 * the sum of its codes, for what is added to stored codes.
template <class Of>
INLINE __m512i begin(int32_t offset) {
  if (Of::CODES_ARE == Coded::SIXES) return _mm512_set1_epi32(Of::LEAST ? 0 : offset >> 2);
  return Of::CODES_ARE == Coded::NIBBLES ? _mm512_setzero_si512() : _mm512_set1_epi32(offset);
}

// Bytes come twice as fast as codes of 4 bits, and those of a small group with few factors to compute.
template <class Of>
constexpr int FORESEEN = Of::CODES_ARE == Coded::BYTES && Of::STEPS == 1 ? 4 : 2;

template <class Of, int ROWS>
INLINE void begin_sums(const int32_t* offsets, int steps, __m512i sums[ROWS][PAIR]) {
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = begin<Of>(offsets[m * steps]);
}

// totals += the sums of a step, the i-th of a part, times its factors.
template <class Of, int ROWS>
INLINE void add_step(const uint8_t* part, int i, const Rounded& in, int step, const int32_t* offsets, int steps,
                     const __m512i sums[ROWS][PAIR], __m512 totals[ROWS][PAIR]) {
  constexpr int OF_BLOCK = BLOCK / Of::DEPTH;
  __m512 d[PAIR], least[PAIR];
  for (int z = 0; z < PAIR; z++) {
    d[z] = Of::scale(part, i, z);
    if (Of::LEAST) least[z] = Of::least(part, i, z);
  }
  for (int m = 0; m < ROWS; m++) {
    const float s = in.scales[(m * steps + step) / OF_BLOCK];
    const __m512 scale = _mm512_set1_ps(s);
    // The sum of the codes: dividing by a power of two rounds nothing.
    const __m512 of_codes = _mm512_set1_ps(static_cast<float>(-(offsets[m * steps + step] >> 7)) * s);
    for (int z = 0; z < PAIR; z++) {
      totals[m][z] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[m][z]), scale), d[z], totals[m][z]);
      if (Of::LEAST) totals[m][z] = _mm512_fmadd_ps(of_codes, least[z], totals[m][z]);
    }
  }
}

// totals += a block of a part: all groups at once where their sums fit into the registers, else one after the other.
template <class Of, int ROWS, int INDEX = 0>
INLINE void add_block(const uint8_t* part, int unit, const Rounded& in, int first, const int32_t* offsets, int steps,
                      __m512 totals[ROWS][PAIR]) {
  constexpr int GROUPS = BLOCK / Of::DEPTH;
  const uint8_t* weights = part + Of::codes(unit);
  const int8_t* codes = in.codes + (first + unit) * Of::DEPTH;
  if constexpr (ROWS <= 2) {
    __m512i sums[GROUPS][ROWS][PAIR];
    for (int i = 0; i < GROUPS; i++) begin_sums<Of, ROWS>(offsets + first + unit + i, steps, sums[i]);
    dot_block<Of, ROWS>(weights, codes, in.inputs, sums);
#pragma GCC unroll 4
    for (int i = 0; i < GROUPS; i++) add_step<Of, ROWS>(part, unit + i, in, first + unit + i, offsets, steps, sums[i], totals);
  } else {
    const int i = unit + INDEX, step = first + i;
    __m512i sums[ROWS][PAIR];
    begin_sums<Of, ROWS>(offsets + step, steps, sums);
    dot_group<Of, INDEX, ROWS>(weights, codes, in.inputs, sums);
    add_step<Of, ROWS>(part, i, in, step, offsets, steps, sums, totals);
    if constexpr (INDEX + 1 < GROUPS) add_block<Of, ROWS, INDEX + 1>(part, unit, in, first, offsets, steps, totals);
  }
}

template <class Of, int ROWS, bool INTEL, bool AGAIN = false>
INLINE void multiply_half(const uint8_t* part, const Rounded& in, __m512i numbers, const float* bias, float* out) {
  constexpr int TOGETHER = Of::CODES_ARE == Coded::SIXES ? BLOCK / Of::DEPTH : 1;
  constexpr size_t BYTES = Of::EACH / Of::STEPS * TOGETHER;
  const int steps = in.inputs / Of::DEPTH;
  const int32_t* offsets = Of::DEPTH == GROUP ? in.offsets : in.fine;
  __m512 totals[ROWS][PAIR];
  zero<ROWS>(totals);
  for (int first = 0; first < steps; first += Of::STEPS, part += Of::EACH)
    for (int i = 0; i < Of::STEPS; i += TOGETHER) {
      if (!AGAIN) fetch_weights<ROWS, FORESEEN<Of>, INTEL>(part + i / TOGETHER * BYTES, BYTES);
      if constexpr (Of::CODES_ARE == Coded::SIXES) {
        add_block<Of, ROWS>(part, i, in, first, offsets, steps, totals);
        continue;
      }
      const int step = first + i;
      const uint8_t* weights = part + Of::codes(i);
      const int8_t* codes = in.codes + step * Of::DEPTH;
      __m512i sums[ROWS][PAIR];
      begin_sums<Of, ROWS>(offsets + step, steps, sums);
      if constexpr (Of::CODES_ARE == Coded::BYTES)
        dot_quads<ROWS>(weights, Of::DEPTH, codes, in.inputs, sums);
      else
        dot_nibbles<Of, ROWS>(weights, numbers, codes, in.inputs, sums);
      add_step<Of, ROWS>(part, i, in, step, offsets, steps, sums, totals);
    }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++)
      _mm512_storeu_ps(out + m * BLOCK + z * 16, _mm512_add_ps(totals[m][z], _mm512_loadu_ps(bias + z * 16)));
}

template <class Of, int ROWS, bool INTEL, bool AGAIN = false>
void multiply(const uint8_t* tile, const Operand& in, int, float* out) {
  const size_t half = strip_bytes<Of>(in.rounded.inputs);
  const float* bias = reinterpret_cast<const float*>(tile + 2 * half);
  __m512i numbers = _mm512_setzero_si512();
  if (Of::CODES_ARE == Coded::TABLE) numbers = _mm512_loadu_si512(table_of(tile, half));
  for (int i = 0; i < 2; i++)
    multiply_half<Of, ROWS, INTEL, AGAIN>(tile + i * half, in.rounded, numbers, bias + i * HALF, out + i * HALF);
}

template <class Of, bool INTEL>
constexpr Multiply MULTIPLY[MOST_ROWS] = {multiply<Of, 1, INTEL>, multiply<Of, 2, INTEL>, multiply<Of, 3, false>,
                                          multiply<Of, 4, false>, multiply<Of, 5, false>, multiply<Of, 6, false>};

template <class Of>
void multiply_any(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  if (in.again && rows == MOST_ROWS) return multiply<Of, MOST_ROWS, false, true>(tile, in, inputs, out);
  (x86().intel ? MULTIPLY<Of, true> : MULTIPLY<Of, false>)[rows - 1](tile, in, inputs, out);
}

template <class Of>
constexpr Tiles TILES = {bytes_of<Of>, pack<Of>, unpack<Of>, multiply_any<Of>};

}  // namespace groups

}  // namespace

AVX512_END

const Gemm avx512_gemm = {
    round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply_any},
        {int8::bytes, int8::pack, int8::unpack, int8::multiply_any},
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

}  // namespace kvcast
#endif
