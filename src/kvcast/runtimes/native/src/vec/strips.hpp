// Memory layout of GEMM tiles whose outputs are in consecutive strips.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has
//   STRIP, FLOATS: outputs of a strip of codes, and of one of floats;
//   SIDE: adjacent inputs of an output, 4 or 8;
//   SIGNS: the mask that is xored to int8 codes as they are stored;
//   LANES: floats of a Vector, of which halves(from, z), bytes(from, z) and signed_bytes(from, z) are the z-th of
//     numbers one after the other; multiply(a, b) and store(to, x).
#pragma once

// Copies `count` values, and pads with zeros to BLOCK.
void copy_or_zeros(const float* from, int count, uint8_t* to) {
  std::memset(to, 0, BLOCK * sizeof(float));
  if (from) std::memcpy(to, from, count * sizeof(float));
}

// [BLOCK / FLOATS, k, FLOATS], then bias.
namespace f32 {

size_t bytes(int inputs) { return sizeof(float) * BLOCK * (1 + static_cast<size_t>(inputs)); }

void pack(const Stored& from, uint8_t* tile) {
  const size_t inputs = from.inputs;
  float* to = reinterpret_cast<float*>(tile);
  if (from.count < BLOCK) std::memset(to, 0, inputs * BLOCK * sizeof(float));
  for (size_t begin = 0; begin < inputs; begin += 16)  // the written part fits into L1
    for (int n = 0; n < from.count; n++)
      for (size_t k = begin; k < std::min(begin + 16, inputs); k++)
        to[(n / FLOATS * inputs + k) * FLOATS + n % FLOATS] = static_cast<const float*>(from.codes)[n * inputs + k];
  copy_or_zeros(from.bias, from.count, tile + inputs * BLOCK * sizeof(float));
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const float* from = reinterpret_cast<const float*>(tile) + static_cast<size_t>(n / FLOATS) * inputs * FLOATS + n % FLOATS;
  for (int k = 0; k < inputs; k++) out[k] = from[static_cast<size_t>(k) * FLOATS];
}

}  // namespace f32

// The offset of input k of output n of a strip.
INLINE size_t place(int n, int k) { return k / SIDE * SIDE * STRIP + SIDE * n + k % SIDE; }

// SIDE inputs from k on of an output of stored int8 codes; zeros past their end.
INLINE uint64_t side(const Stored& from, int n, int k) {
  uint64_t bits = 0;
  const int8_t* codes = static_cast<const int8_t*>(from.codes) + static_cast<size_t>(n) * from.inputs + k;
  if (n < from.count && k + SIDE <= from.inputs)
    std::memcpy(&bits, codes, SIDE);
  else if (n < from.count && k < from.inputs)
    std::memcpy(&bits, codes, from.inputs - k);
  return bits ^ SIGNS * 0x0101010101010101u;
}

// `count` inputs from k on of a strip, as [count / SIDE, STRIP, SIDE].
INLINE void pack_codes(const Stored& from, int strip, int k, int count, uint8_t* to) {
  for (int n = 0; n < STRIP; n++)
    for (int i = 0; i < count; i += SIDE) {
      const uint64_t bits = side(from, strip * STRIP + n, k + i);
      std::memcpy(to + place(n, i), &bits, SIDE);
    }
}

INLINE int code(uint8_t stored) { return static_cast<int8_t>(stored ^ SIGNS); }

// [BLOCK / STRIP, k / SIDE, STRIP, SIDE] codes; then scales and bias.
namespace int8 {

size_t bytes(int inputs) { return static_cast<size_t>(BLOCK) * filled(inputs) + 2 * BLOCK * sizeof(float); }

void pack(const Stored& from, uint8_t* tile) {
  const int inputs = filled(from.inputs);
  for (int strip = 0; strip < BLOCK / STRIP; strip++)
    for (int k = 0; k < inputs; k += BLOCK, tile += BLOCK * STRIP) pack_codes(from, strip, k, BLOCK, tile);
  copy_or_zeros(from.scales, from.count, tile);
  copy_or_zeros(from.bias, from.count, tile + BLOCK * sizeof(float));
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const size_t codes = static_cast<size_t>(filled(inputs));
  const float scale = reinterpret_cast<const float*>(tile + BLOCK * codes)[n];
  tile += n / STRIP * STRIP * codes;
  for (int k = 0; k < inputs; k++) out[k] = code(tile[place(n % STRIP, k)]) * scale;
}

}  // namespace int8

// The formats of groups: [BLOCK / STRIP] strips of parts, one after the other; then bias, and the numbers of codes
// (TABLE). A part of EACH bytes has the factors and the codes of STEPS groups of DEPTH inputs.
namespace groups {

enum class Coded { BYTES, NIBBLES, TABLE, SIXES };

constexpr int QUARTER = BLOCK / 4;

constexpr size_t HALVES = STRIP * sizeof(uint16_t);

// The i-th of `each` values per stored output, for a strip; zeros where absent.
INLINE float number(const float* from, const Stored& stored, int each, int strip, int i, int n) {
  const int output = strip * STRIP + n;
  return output < stored.count && i < each ? from[static_cast<size_t>(output) * each + i] : 0;
}

void pack_halves(const float* from, const Stored& stored, int each, int strip, int i, uint8_t* to) {
  for (int n = 0; n < STRIP; n++) {
    const uint16_t bits = to_half(number(from, stored, each, strip, i, n));
    std::memcpy(to + 2 * n, &bits, 2);
  }
}

void pack_bytes(const float* from, const Stored& stored, int each, int strip, int i, uint8_t* to) {
  for (int n = 0; n < STRIP; n++) to[n] = static_cast<uint8_t>(static_cast<int>(number(from, stored, each, strip, i, n)));
}

// Bytes of a strip's codes, DEPTH of each output. BYTES: [DEPTH / SIDE, STRIP, SIDE]. NIBBLES and TABLE: [DEPTH / 2 /
// SIDE, STRIP, SIDE], input k of the group in the low half of a byte, k + DEPTH / 2 in the high one. SIXES: of a
// block's four quarters [QUARTER / SIDE, 3, STRIP, SIDE]: low nibbles of the first two, of the others, and two high bits
// of each, the first quarter's lowest.
constexpr size_t code_bytes(Coded coded, int depth) {
  return static_cast<size_t>(depth) * STRIP * (coded == Coded::BYTES ? 4 : coded == Coded::SIXES ? 3 : 2) / 4;
}

// Of SIXES: what is stored for a code of 0.
constexpr int zero_of(Coded coded, bool has_least) { return coded == Coded::SIXES && !has_least ? 32 : 0; }

INLINE Vector floats(const uint8_t* from, int z) {
  Vector x;
  std::memcpy(&x, from + z * sizeof x, sizeof x);
  return x;
}

void pack_floats(const float* from, const Stored& stored, int each, int strip, int i, uint8_t* to) {
  for (int n = 0; n < STRIP; n++) {
    const float x = number(from, stored, each, strip, i, n);
    std::memcpy(to + sizeof x * n, &x, sizeof x);
  }
}

// A group's scales are halves, and so are its least values (if any); then come its codes. SIXES: those of a block's two
// groups.
template <Coded CODED, bool HAS_LEAST, int INPUTS = GROUP>
struct Small {
  static constexpr Coded CODES_ARE = CODED;
  static constexpr bool LEAST = HAS_LEAST;
  static constexpr bool PAIRED = CODED == Coded::NIBBLES;  // stored codes are two in a byte
  static constexpr int DEPTH = INPUTS, STEPS = CODED == Coded::SIXES ? BLOCK / DEPTH : 1, ZERO = zero_of(CODED, LEAST);
  static constexpr size_t FACTORS = (LEAST ? 2 : 1) * HALVES, HEAD = STEPS * FACTORS, EACH = HEAD + STEPS * code_bytes(CODED, DEPTH);

  static constexpr size_t codes(int) { return HEAD; }
  static INLINE Vector scale(const uint8_t* part, int i, int z) { return halves(part + i * FACTORS, z); }
  static INLINE Vector least(const uint8_t* part, int i, int z) { return halves(part + i * FACTORS + HALVES, z); }

  static void pack_factors(const Stored& from, int strip, int part, uint8_t* to) {
    const int each = (from.inputs + DEPTH - 1) / DEPTH;
    for (int i = 0; i < STEPS; i++, to += FACTORS) {
      pack_halves(from.scales, from, each, strip, part * STEPS + i, to);
      if (LEAST) pack_halves(from.least, from, each, strip, part * STEPS + i, to + HALVES);
    }
  }
};

// Codes less a group's zero point, times its scale, which is a half: least values are exact products. A part has two
// groups, so that codes begin with a line of memory.
struct Int4ZeroPoint {
  static constexpr Coded CODES_ARE = Coded::NIBBLES;
  static constexpr bool LEAST = true, PAIRED = false;
  static constexpr int DEPTH = GROUP, STEPS = BLOCK / DEPTH, ZERO = 0;
  static constexpr size_t FACTORS = HALVES + STRIP, HEAD = STEPS * FACTORS, CODES = code_bytes(CODES_ARE, DEPTH);
  static constexpr size_t EACH = HEAD + STEPS * CODES;

  static constexpr size_t codes(int i) { return HEAD + i * CODES; }
  static INLINE Vector scale(const uint8_t* part, int i, int z) { return halves(part + i * FACTORS, z); }
  static INLINE Vector least(const uint8_t* part, int i, int z) {
    return multiply(scale(part, i, z), signed_bytes(part + i * FACTORS + HALVES, z));
  }

  static void pack_factors(const Stored& from, int strip, int part, uint8_t* to) {
    const int each = (from.inputs + GROUP - 1) / GROUP;
    for (int i = 0; i < STEPS; i++, to += FACTORS) {
      pack_halves(from.scales, from, each, strip, part * STEPS + i, to);
      for (int n = 0; n < STRIP; n++)
        to[HALVES + n] = static_cast<uint8_t>(-static_cast<int>(number(from.least, from, each, strip, part * STEPS + i, n)));
    }
  }
};

// A large block has a half for its scales and one for its least values (if any), or a float where there is a table: of
// that, eighths are made, for which halves are too small. After them all is read in the order in
// which it lies: of each one, two or four groups, so that codes begin with a line of memory, the scales as bytes, the
// least values likewise, and the codes.
template <Coded CODED, bool HAS_LEAST, int INPUTS>
struct Large {
  static constexpr Coded CODES_ARE = CODED;
  static constexpr bool LEAST = HAS_LEAST;
  static constexpr bool PAIRED = false;
  static constexpr int DEPTH = INPUTS, STEPS = LARGE / DEPTH;
  static constexpr int ZERO = zero_of(CODED, LEAST);
  static constexpr int KINDS = LEAST ? 2 : 1, TOGETHER = CODED == Coded::SIXES ? BLOCK / DEPTH : LEAST ? 1 : 2;
  static constexpr size_t CODES = code_bytes(CODED, DEPTH), BYTES = TOGETHER * STRIP, UNIT = KINDS * BYTES + TOGETHER * CODES;
  static constexpr bool EXACT = CODED == Coded::TABLE;
  static constexpr size_t HEAD = EXACT ? 2 * HALVES : KINDS * HALVES, EACH = HEAD + STEPS / TOGETHER * UNIT;

  static constexpr size_t unit(int i) { return HEAD + i / TOGETHER * UNIT; }
  static constexpr size_t scales(int i) { return unit(i) + i % TOGETHER * STRIP; }
  static constexpr size_t codes(int i) {
    return unit(i) + KINDS * BYTES + (CODED == Coded::SIXES ? 0 : i % TOGETHER * CODES);
  }

  static INLINE Vector scale(const uint8_t* part, int i, int z) {
    const uint8_t* from = part + scales(i);
    return multiply(EXACT ? floats(part, z) : halves(part, z), LEAST ? bytes(from, z) : signed_bytes(from, z));
  }
  static INLINE Vector least(const uint8_t* part, int i, int z) {
    return multiply(halves(part + HALVES, z), bytes(part + scales(i) + BYTES, z));
  }

  static void pack_factors(const Stored& from, int strip, int part, uint8_t* to) {
    const int each = from.inputs / DEPTH;
    (EXACT ? pack_floats : pack_halves)(from.large_scales, from, each / STEPS, strip, part, to);
    if (LEAST) pack_halves(from.large_least, from, each / STEPS, strip, part, to + HALVES);
    for (int i = 0; i < STEPS; i++) {
      pack_bytes(from.scales, from, each, strip, part * STEPS + i, to + scales(i));
      if (LEAST) pack_bytes(from.least, from, each, strip, part * STEPS + i, to + scales(i) + BYTES);
    }
  }
};

template <class Of>
constexpr int parts(int inputs) {
  return filled(inputs) / (Of::DEPTH * Of::STEPS);
}

template <class Of>
size_t strip_bytes(int inputs) {
  return Of::EACH * parts<Of>(inputs);
}

template <class Of>
size_t bytes_of(int inputs) {
  return BLOCK / STRIP * strip_bytes<Of>(inputs) + BLOCK * sizeof(float) + (Of::CODES_ARE == Coded::TABLE ? BLOCK : 0);
}

// Code k of output n of codes that are two in a byte.
INLINE int nibble(const Stored& from, int n, int k) {
  if (n >= from.count || k >= from.inputs) return 0;
  return static_cast<const uint8_t*>(from.codes)[static_cast<size_t>(n) * ((from.inputs + 1) / 2) + k / 2] >> k % 2 * 4 & 15;
}

// The nibbles of a part, of output n from k on; zeros where there are none. Of stored codes that are two in a byte.
INLINE void join_pairs(const Stored& from, int n, int k, uint8_t (&to)[GROUP / 2]) {
  if (n >= from.count || k + GROUP > from.inputs) {
    for (int i = 0; i < GROUP / 2; i++)
      to[i] = static_cast<uint8_t>(nibble(from, n, k + i) | nibble(from, n, k + GROUP / 2 + i) << 4);
    return;
  }
  const size_t each = (from.inputs + 1) / 2;
  const uint8_t *low = static_cast<const uint8_t*>(from.codes) + n * each + k / 2, *high = low + GROUP / 4;
  for (int i = 0; i < GROUP / 4; i++) {
    to[2 * i] = static_cast<uint8_t>((low[i] & 15) | high[i] << 4);
    to[2 * i + 1] = static_cast<uint8_t>(low[i] >> 4 | (high[i] & 0xf0));
  }
}

// Likewise, of codes that have a byte each.
template <int DEPTH>
INLINE void join_bytes(const Stored& from, int n, int k, uint8_t (&to)[GROUP / 2]) {
  const uint8_t* codes = static_cast<const uint8_t*>(from.codes) + static_cast<size_t>(n) * from.inputs + k;
  const bool is_there = n < from.count && k < from.inputs;
  for (int i = 0; i < DEPTH / 2; i++) to[i] = is_there ? static_cast<uint8_t>(codes[i] | codes[i + DEPTH / 2] << 4) : 0;
}

// Calls f(i) with a constant, below COUNT.
template <int COUNT, class Function>
INLINE void with_index(int i, Function f) {
  static_assert(COUNT == 2 || COUNT == 4);
  if (i == 0) return f(std::integral_constant<int, 0>());
  if (i == 1) return f(std::integral_constant<int, 1>());
  if (i == 2) return f(std::integral_constant<int, 2 % COUNT>());
  f(std::integral_constant<int, 3 % COUNT>());
}

// The offset, in the first of three, of input k of each quarter of output n.
INLINE size_t place_of_six(int n, int k) { return place(n, k) + k / SIDE * 2 * SIDE * STRIP; }

// The codes of a block, of inputs k on.
template <class Of>
void pack_sixes(const Stored& from, int strip, int k, uint8_t* to) {
  for (int n = 0; n < STRIP; n++) {
    const int output = strip * STRIP + n;
    const int8_t* codes = static_cast<const int8_t*>(from.codes) + static_cast<size_t>(output) * from.inputs;
    for (int i = 0; i < QUARTER; i++) {
      const auto code = [&](int quarter) {
        const int at = k + quarter * QUARTER + i;
        return output < from.count && at < from.inputs ? codes[at] + Of::ZERO : Of::ZERO;
      };
      uint8_t* const at = to + place_of_six(n, i);
      for (int pair = 0; pair < 2; pair++)
        at[pair * SIDE * STRIP] = static_cast<uint8_t>((code(2 * pair) & 15) | code(2 * pair + 1) << 4);
      uint8_t& high = at[2 * SIDE * STRIP] = 0;
      for (int quarter = 0; quarter < 4; quarter++) high |= static_cast<uint8_t>(code(quarter) >> 4 << 2 * quarter);
    }
  }
}

template <class Of>
void pack_step(const Stored& from, int strip, int k, uint8_t* to) {
  if constexpr (Of::CODES_ARE == Coded::BYTES) return pack_codes(from, strip, k, Of::DEPTH, to);
  if constexpr (Of::CODES_ARE == Coded::SIXES) {
    if (k % BLOCK == 0) pack_sixes<Of>(from, strip, k, to);
    return;
  }
  for (int n = 0; n < STRIP; n++) {
    uint8_t joined[GROUP / 2];
    if (Of::PAIRED)
      join_pairs(from, strip * STRIP + n, k, joined);
    else
      join_bytes<Of::DEPTH>(from, strip * STRIP + n, k, joined);
    for (int i = 0; i < Of::DEPTH / 2; i += SIDE) std::memcpy(to + place(n, i), joined + i, SIDE);
  }
}

template <class Of>
void pack(const Stored& from, uint8_t* tile) {
  for (int strip = 0; strip < BLOCK / STRIP; strip++)
    for (int part = 0; part < parts<Of>(from.inputs); part++, tile += Of::EACH) {
      Of::pack_factors(from, strip, part, tile);
      for (int i = 0; i < Of::STEPS; i++)
        pack_step<Of>(from, strip, (part * Of::STEPS + i) * Of::DEPTH, tile + Of::codes(i));
    }
  copy_or_zeros(from.bias, from.count, tile);
  if constexpr (Of::CODES_ARE == Coded::TABLE)
    for (int i = 0; i < BLOCK; i++) tile[BLOCK * sizeof(float) + i] = static_cast<uint8_t>(from.table[i % TABLE]) ^ SIGNS;
}

// The address of the codes' values, after a tile's bias.
INLINE const uint8_t* table_of(const uint8_t* tile, size_t strip) {
  return tile + BLOCK / STRIP * strip + BLOCK * sizeof(float);
}

INLINE float lane(Vector x, int i) {
  float numbers[LANES];
  store(numbers, x);
  return numbers[i];
}

// The number of input k of output n of a strip, whose group's codes these are.
template <class Of>
INLINE int number_of(const uint8_t* codes, const uint8_t* table, int n, int k) {
  constexpr int HALF_GROUP = Of::DEPTH / 2;
  if constexpr (Of::CODES_ARE == Coded::BYTES) return code(codes[place(n, k % Of::DEPTH)]);
  if constexpr (Of::CODES_ARE == Coded::SIXES) {
    const uint8_t* at = codes + place_of_six(n, k % QUARTER);
    const int quarter = k % BLOCK / QUARTER;
    const int low = at[quarter / 2 * SIDE * STRIP] >> quarter % 2 * 4 & 15, high = at[2 * SIDE * STRIP] >> quarter * 2 & 3;
    return (low | high << 4) - Of::ZERO;
  }
  const int nibble = codes[place(n, k % HALF_GROUP)] >> k % Of::DEPTH / HALF_GROUP * 4 & 15;
  return Of::CODES_ARE == Coded::TABLE ? code(table[nibble]) : nibble;
}

template <class Of>
void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const size_t strip = strip_bytes<Of>(inputs);
  const uint8_t *parts = tile + n / STRIP * strip, *table = table_of(tile, strip);
  const int i = n % STRIP, z = i / LANES;
  for (int g = 0; g * Of::DEPTH < inputs; g++) {
    const uint8_t *part = parts + g / Of::STEPS * Of::EACH, *codes = part + Of::codes(g % Of::STEPS);
    const float scale = lane(Of::scale(part, g % Of::STEPS, z), i % LANES);
    const float least = Of::LEAST ? lane(Of::least(part, g % Of::STEPS, z), i % LANES) : 0;
    for (int k = g * Of::DEPTH; k < std::min((g + 1) * Of::DEPTH, inputs); k++) {
      const float times = static_cast<float>(number_of<Of>(codes, table, i, k));
      out[k] = Of::LEAST ? std::fma(times, scale, least) : times * scale;
    }
  }
}

}  // namespace groups

using Int8Block = groups::Small<groups::Coded::BYTES, false>;
using Int4Min = groups::Small<groups::Coded::NIBBLES, true>;
using Int4Table = groups::Small<groups::Coded::TABLE, false>;
using Int4Large = groups::Large<groups::Coded::NIBBLES, true, GROUP>;
using Int4TableLarge = groups::Large<groups::Coded::TABLE, false, FINE>;
using Int8LargeMin = groups::Large<groups::Coded::BYTES, true, FINE>;
using Int6Block = groups::Small<groups::Coded::SIXES, false>;
using Int6Large = groups::Large<groups::Coded::SIXES, false, FINE>;
using Int6LargeMin = groups::Large<groups::Coded::SIXES, true, GROUP>;
using Int4TableFine = groups::Small<groups::Coded::TABLE, false, FINE>;
using Int4ZeroPoint = groups::Int4ZeroPoint;
