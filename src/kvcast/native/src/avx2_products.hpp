// Products with AVX2: fp32, int8 and int4. Tiles are four strips of STRIP outputs each, one after the other.
//
// The files that include this where their instructions are allowed differ in how a product of int8 is taken. They
// have SIGNS, which stored codes are xored with, and
//   begin(offset): what a sum of products of such codes and a row's begins with, for the row's offset;
//   add(sum, weights, row): four such products for each of 8 outputs;
//   add_nibbles(sum, weights, row): likewise, weights are 0 .. 15;
//   end_nibbles(sum): sums of a group of those.
// So it includes nothing itself and defines nothing that two files could share.
#pragma once

constexpr int STRIPS = BLOCK / STRIP;

INLINE void round_vectors(const __m256 v[VECTORS], const Rounded& to) {
  // As integers, magnitudes have the order of the numbers, and NaN is above them all: it is not lost.
  __m256i most = _mm256_setzero_si256();
  for (int z = 0; z < VECTORS; z++) most = _mm256_max_epi32(most, _mm256_castps_si256(magnitude(v[z])));
  const int32_t bits = greatest(most);
  float m;
  std::memcpy(&m, &bits, sizeof m);
  const bool is_zero = m < SMALLEST;
  const __m256 inverse = _mm256_set1_ps(m >= SMALLEST ? 127.f / m : 0.f);
  for (int g = 0; g < BLOCK / GROUP; g++) {
    __m256i codes[4], sum = _mm256_setzero_si256();
    for (int z = 0; z < 4; z++) {
      const __m256i nearest = _mm256_cvtps_epi32(_mm256_mul_ps(v[4 * g + z], inverse));
      codes[z] = _mm256_max_epi32(nearest, _mm256_set1_epi32(-127));  // NaN came as the least integer
      sum = _mm256_add_epi32(sum, codes[z]);
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(codes[0], codes[1]), _mm256_packs_epi32(codes[2], codes[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to.codes + g * GROUP),
                        _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    to.offsets[g] = -128 * total(sum);
  }
  *to.scales = is_zero ? 0.f : m / 127.f;
}

void round(const float* x, int count, const Rounded& to) {
  __m256 v[VECTORS];
  for (int z = 0; z < VECTORS; z++) v[z] = load(x + 8 * z, count - 8 * z);
  round_vectors(v, to);
}

void finish(const float* x, int count, const Ending& ending) {
  with_activation(ending.activation, [&](auto f) {
    __m256 v[VECTORS];
    for (int z = 0; z < VECTORS; z++) {
      const int there = count - 8 * z;
      v[z] = f(load(x + 8 * z, there));
      if (ending.residual) v[z] = _mm256_add_ps(v[z], load(ending.residual + 8 * z, there));
      if (ending.out) store(ending.out + 8 * z, there, v[z]);
    }
    if (ending.to) round_vectors(v, *ending.to);
  });
}

// Copies count numbers, and zeros up to BLOCK of them.
void copy_or_zeros(const float* from, int count, uint8_t* to) {
  std::memset(to, 0, BLOCK * sizeof(float));
  if (from) std::memcpy(to, from, count * sizeof(float));
}

// [STRIPS, k, STRIP], then bias.
namespace f32 {

size_t bytes(int inputs) { return sizeof(float) * BLOCK * (1 + static_cast<size_t>(inputs)); }

void pack(const Stored& from, uint8_t* tile) {
  const size_t inputs = from.inputs;
  float* to = reinterpret_cast<float*>(tile);
  if (from.count < BLOCK) std::memset(to, 0, inputs * BLOCK * sizeof(float));
  for (size_t begin = 0; begin < inputs; begin += 16)  // what is written lies in the first cache
    for (int n = 0; n < from.count; n++)
      for (size_t k = begin; k < std::min(begin + 16, inputs); k++)
        to[(n / STRIP * inputs + k) * STRIP + n % STRIP] = static_cast<const float*>(from.codes)[n * inputs + k];
  copy_or_zeros(from.bias, from.count, tile + inputs * BLOCK * sizeof(float));
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const float* from = reinterpret_cast<const float*>(tile) + static_cast<size_t>(n / STRIP) * inputs * STRIP + n % STRIP;
  for (int k = 0; k < inputs; k++) out[k] = from[static_cast<size_t>(k) * STRIP];
}

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

// What the formats of codes share. Their sums for three rows fit into the registers.
using Multiply = void (*)(const uint8_t*, const Operand&, float*);

INLINE void by_rows(const Multiply (&multiply)[3], const uint8_t* tile, const Operand& in, int rows, float* out) {
  const int at_once = rows <= 3 ? rows : (rows + 1) / 2;
  for (int m = 0; m < rows; m += at_once)
    multiply[std::min(at_once, rows - m) - 1](tile, in.row(m), out + m * BLOCK);
}

INLINE __m256i load_codes(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

// Four codes of a row, for every output.
INLINE __m256i four(const int8_t* codes) {
  int32_t bits;
  std::memcpy(&bits, codes, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// Four inputs from k on of an output of stored int8 codes; zeros past their end.
INLINE uint32_t quad(const Stored& from, int n, int k) {
  uint32_t bits = 0;
  if (n < from.count && k < from.inputs)
    std::memcpy(&bits, static_cast<const int8_t*>(from.codes) + static_cast<size_t>(n) * from.inputs + k,
                std::min(4, from.inputs - k));
  return bits ^ SIGNS * 0x01010101u;
}

INLINE int code(uint8_t stored) { return static_cast<int8_t>(stored ^ SIGNS); }

// `count` inputs from k on of a strip, as [count / 4, STRIP, 4].
INLINE void pack_quads(const Stored& from, int strip, int k, int count, uint8_t* to) {
  for (int n = 0; n < STRIP; n++)
    for (int i = 0; i < count; i += 4) {
      const uint32_t bits = quad(from, strip * STRIP + n, k + i);
      std::memcpy(to + i * STRIP + 4 * n, &bits, 4);
    }
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

// [STRIPS, k / 4, STRIP, 4] codes; then scales and bias.
namespace int8 {

size_t bytes(int inputs) { return static_cast<size_t>(BLOCK) * filled(inputs) + 2 * BLOCK * sizeof(float); }

void pack(const Stored& from, uint8_t* tile) {
  const int inputs = filled(from.inputs);
  for (int strip = 0; strip < STRIPS; strip++)
    for (int k = 0; k < inputs; k += BLOCK, tile += BLOCK * STRIP) pack_quads(from, strip, k, BLOCK, tile);
  copy_or_zeros(from.scales, from.count, tile);
  copy_or_zeros(from.bias, from.count, tile + BLOCK * sizeof(float));
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const size_t strip = static_cast<size_t>(STRIP) * filled(inputs);
  const float scale = reinterpret_cast<const float*>(tile + STRIPS * strip)[n];
  tile += n / STRIP * strip + n % STRIP * 4;
  for (int k = 0; k < inputs; k++) out[k] = code(tile[k / 4 * 4 * STRIP + k % 4]) * scale;
}

template <int ROWS>
INLINE void multiply_strip(const uint8_t* weights, const Rounded& in, const float* scales, float* out) {
  const int blocks = in.inputs / BLOCK;
  __m256 totals[ROWS][PAIR];
  zero<ROWS>(totals);
  for (int b = 0; b < blocks; b++, weights += BLOCK * STRIP) {
    __m256i sums[ROWS][PAIR];
    for (int m = 0; m < ROWS; m++) {
      const int32_t* offsets = in.offsets + (m * blocks + b) * 2;
      for (int z = 0; z < PAIR; z++) sums[m][z] = begin(offsets[0] + offsets[1]);
    }
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

template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, float* out) {
  const size_t strip = static_cast<size_t>(STRIP) * in.rounded.inputs;
  const float* scales = reinterpret_cast<const float*>(tile + STRIPS * strip);
  for (int i = 0; i < STRIPS; i++) multiply_strip<ROWS>(tile + i * strip, in.rounded, scales + i * STRIP, out + i * STRIP);
}

void multiply_any(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  by_rows({multiply<1>, multiply<2>, multiply<3>}, tile, in, rows, out);
}

}  // namespace int8

// The formats of groups: [STRIPS, k / GROUP] of a group's scales (halves [STRIP]), its least values likewise
// (if any) and its codes; then bias.
namespace groups {

constexpr size_t HALVES = STRIP * sizeof(uint16_t);

void pack_halves(const float* from, const Stored& stored, int strip, int g, uint8_t* to) {
  const int groups = (stored.inputs + GROUP - 1) / GROUP;
  for (int i = 0; i < STRIP; i++) {
    const int n = strip * STRIP + i;
    const uint16_t bits = n < stored.count && g < groups ? to_half(from[static_cast<size_t>(n) * groups + g]) : 0;
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

float unpack_half(const uint8_t* from, int i) {
  uint16_t bits;
  std::memcpy(&bits, from + 2 * i, 2);
  return from_half(bits);
}

// 8 halves.
INLINE __m256 halves(const uint8_t* at) { return load(reinterpret_cast<const uint16_t*>(at)); }

INLINE void store(const __m256 total[PAIR], const float* bias, float* out) {
  for (int z = 0; z < PAIR; z++) _mm256_storeu_ps(out + z * 8, _mm256_add_ps(total[z], load(bias + z * 8)));
}

}  // namespace groups

// Codes [GROUP / 4, STRIP, 4].
namespace int8_block {

constexpr size_t EACH = groups::HALVES + GROUP * STRIP;

size_t bytes(int inputs) { return STRIPS * EACH * (filled(inputs) / GROUP) + BLOCK * sizeof(float); }

void pack(const Stored& from, uint8_t* tile) {
  for (int strip = 0; strip < STRIPS; strip++)
    for (int g = 0; g < filled(from.inputs) / GROUP; g++, tile += EACH) {
      groups::pack_halves(from.scales, from, strip, g, tile);
      pack_quads(from, strip, g * GROUP, GROUP, tile + groups::HALVES);
    }
  copy_or_zeros(from.bias, from.count, tile);
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  tile += n / STRIP * EACH * (filled(inputs) / GROUP);
  for (int k = 0; k < inputs; k++) {
    const uint8_t* group = tile + k / GROUP * EACH;
    const int i = k % GROUP;
    const uint8_t stored = group[groups::HALVES + i / 4 * 4 * STRIP + n % STRIP * 4 + i % 4];
    out[k] = code(stored) * groups::unpack_half(group, n % STRIP);
  }
}

template <int ROWS>
INLINE void multiply_strip(const uint8_t* tile, const Rounded& in, const float* bias, float* out) {
  const int blocks = in.inputs / BLOCK;
  __m256 totals[ROWS][PAIR];
  zero<ROWS>(totals);
  for (int g = 0; g < 2 * blocks; g++, tile += EACH) {
    __m256i sums[ROWS][PAIR];
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < PAIR; z++) sums[m][z] = begin(in.offsets[m * blocks * 2 + g]);
    dot_quads<ROWS>(tile + groups::HALVES, GROUP, in.codes + g * GROUP, in.inputs, sums);
    __m256 d[PAIR];
    for (int z = 0; z < PAIR; z++) d[z] = groups::halves(tile + 16 * z);
    for (int m = 0; m < ROWS; m++) {
      const __m256 scale = _mm256_set1_ps(in.scales[m * blocks + g / 2]);
      for (int z = 0; z < PAIR; z++)
        totals[m][z] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[m][z]), scale), d[z], totals[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++) groups::store(totals[m], bias, out + m * BLOCK);
}

template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, float* out) {
  const size_t strip = EACH * (in.rounded.inputs / GROUP);
  const float* bias = reinterpret_cast<const float*>(tile + STRIPS * strip);
  for (int i = 0; i < STRIPS; i++) multiply_strip<ROWS>(tile + i * strip, in.rounded, bias + i * STRIP, out + i * STRIP);
}

void multiply_any(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  by_rows({multiply<1>, multiply<2>, multiply<3>}, tile, in, rows, out);
}

}  // namespace int8_block

// Codes [GROUP / 8, STRIP, 4]: input k of the group in the low half of a byte, k + GROUP / 2 in the high one.
namespace int4_min {

constexpr size_t EACH = 2 * groups::HALVES + GROUP * STRIP / 2;

size_t bytes(int inputs) { return STRIPS * EACH * (filled(inputs) / GROUP) + BLOCK * sizeof(float); }

int stored_code(const Stored& from, int n, int k) {
  if (n >= from.count || k >= from.inputs) return 0;
  return static_cast<const uint8_t*>(from.codes)[static_cast<size_t>(n) * ((from.inputs + 1) / 2) + k / 2] >> k % 2 * 4 & 15;
}

void pack(const Stored& from, uint8_t* tile) {
  for (int strip = 0; strip < STRIPS; strip++)
    for (int g = 0; g < filled(from.inputs) / GROUP; g++, tile += EACH) {
      groups::pack_halves(from.scales, from, strip, g, tile);
      groups::pack_halves(from.least, from, strip, g, tile + groups::HALVES);
      for (int i = 0; i < STRIP; i++)
        for (int k = 0; k < GROUP / 2; k++) {
          const int n = strip * STRIP + i, low = g * GROUP + k;
          tile[2 * groups::HALVES + k / 4 * 4 * STRIP + 4 * i + k % 4] =
              static_cast<uint8_t>(stored_code(from, n, low) | stored_code(from, n, low + GROUP / 2) << 4);
        }
    }
  copy_or_zeros(from.bias, from.count, tile);
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  tile += n / STRIP * EACH * (filled(inputs) / GROUP);
  const int i = n % STRIP;
  for (int k = 0; k < inputs; k++) {
    const uint8_t* group = tile + k / GROUP * EACH;
    const int in_half = k % (GROUP / 2), high = k % GROUP / (GROUP / 2);
    const int code = group[2 * groups::HALVES + in_half / 4 * 4 * STRIP + 4 * i + in_half % 4] >> 4 * high & 15;
    out[k] = std::fma(static_cast<float>(code), groups::unpack_half(group, i), groups::unpack_half(group + groups::HALVES, i));
  }
}

// A group x codes.
template <int ROWS>
INLINE void dot_nibbles(const uint8_t* weights, const int8_t* codes, size_t stride, __m256i sums[ROWS][PAIR]) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = _mm256_setzero_si256();
  for (int k = 0; k < GROUP / 2; k += 4, weights += 4 * STRIP)
    for (int z = 0; z < PAIR; z++) {
      const __m256i both = load_codes(weights + z * 32);
      const __m256i w[2] = {_mm256_and_si256(both, low), _mm256_and_si256(_mm256_srli_epi16(both, 4), low)};
      for (int m = 0; m < ROWS; m++)
        for (int half = 0; half < 2; half++) {
          const __m256i y = four(codes + m * stride + k + half * (GROUP / 2));
          add_nibbles(sums[m][z], w[half], y);
        }
    }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PAIR; z++) sums[m][z] = end_nibbles(sums[m][z]);
}

template <int ROWS>
INLINE void multiply_strip(const uint8_t* tile, const Rounded& in, const float* bias, float* out) {
  const int blocks = in.inputs / BLOCK;
  __m256 totals[ROWS][PAIR];
  zero<ROWS>(totals);
  for (int g = 0; g < 2 * blocks; g++, tile += EACH) {
    __m256i sums[ROWS][PAIR];
    dot_nibbles<ROWS>(tile + 2 * groups::HALVES, in.codes + g * GROUP, in.inputs, sums);
    __m256 d[PAIR], least[PAIR];
    for (int z = 0; z < PAIR; z++) {
      d[z] = groups::halves(tile + 16 * z);
      least[z] = groups::halves(tile + groups::HALVES + 16 * z);
    }
    for (int m = 0; m < ROWS; m++) {
      const float s = in.scales[m * blocks + g / 2];
      const __m256 scale = _mm256_set1_ps(s);
      const __m256 codes = _mm256_set1_ps(static_cast<float>(in.offsets[m * blocks * 2 + g]) * s * (-1 / 128.f));
      for (int z = 0; z < PAIR; z++) {
        totals[m][z] = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[m][z]), scale), d[z], totals[m][z]);
        totals[m][z] = _mm256_fmadd_ps(codes, least[z], totals[m][z]);
      }
    }
  }
  for (int m = 0; m < ROWS; m++) groups::store(totals[m], bias, out + m * BLOCK);
}

template <int ROWS>
void multiply(const uint8_t* tile, const Operand& in, float* out) {
  const size_t strip = EACH * (in.rounded.inputs / GROUP);
  const float* bias = reinterpret_cast<const float*>(tile + STRIPS * strip);
  for (int i = 0; i < STRIPS; i++) multiply_strip<ROWS>(tile + i * strip, in.rounded, bias + i * STRIP, out + i * STRIP);
}

void multiply_any(const uint8_t* tile, const Operand& in, int, int rows, float* out) {
  by_rows({multiply<1>, multiply<2>, multiply<3>}, tile, in, rows, out);
}

}  // namespace int4_min

constexpr Products PRODUCTS = {
    round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply_any},
        {int8::bytes, int8::pack, int8::unpack, int8::multiply_any},
        {int8_block::bytes, int8_block::pack, int8_block::unpack, int8_block::multiply_any},
        {int4_min::bytes, int4_min::pack, int4_min::unpack, int4_min::multiply_any},
    },
};
