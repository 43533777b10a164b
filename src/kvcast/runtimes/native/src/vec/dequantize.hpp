// Dequantizes and quantizes rows of values as stored in files.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has
//   halves(from, count, out): halves as floats;
//   to_halves_and_back(x, count): floats as near as halves come to them.
// ggml's blocks are those of ggml-common.h: a half is a float16, a nibble 4 bits. Results equal those of NumPy, as
// gguf-py computes them, bit for bit.
#pragma once

constexpr int PARTS = LARGE / FINE;  // of a large block
constexpr float MOST_INT8 = 127, SMALLEST_HALF = 1.f / (1 << 14), LARGEST_HALF = 65504;  // a normal one

INLINE float half_at(const uint8_t* from) {
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return from_half(bits);
}

// The nibbles of GROUP / 2 bytes: the low ones come first.
INLINE void nibbles(const uint8_t* from, uint8_t* to) {
  for (int i = 0; i < GROUP / 2; i++) {
    to[i] = from[i] & 15;
    to[i + GROUP / 2] = from[i] >> 4;
  }
}

// A fifth bit for each of GROUP nibbles.
INLINE void fifth_bits(const uint8_t* from, uint8_t* to) {
  uint32_t bits;
  std::memcpy(&bits, from, 4);
  for (int i = 0; i < GROUP; i++) to[i] = static_cast<uint8_t>(to[i] | (bits >> i & 1) << 4);
}

// The eight scales and the eight least values of a large block with 4 or 5 bits, which have 6 bits each.
INLINE void six_bits(const uint8_t* from, uint8_t* scales, uint8_t* least) {
  for (int i = 0; i < 4; i++) {
    scales[i] = from[i] & 63;
    least[i] = from[i + 4] & 63;
    scales[i + 4] = static_cast<uint8_t>((from[i + 8] & 15) | from[i] >> 6 << 4);
    least[i + 4] = static_cast<uint8_t>(from[i + 8] >> 4 | from[i + 4] >> 6 << 4);
  }
}

// Q4_0, Q4_1, Q5_0, Q5_1: a half, a second one for the least value (if any), fifth bits (if any), nibbles. Without a
// least value the code in the middle stands for 0.
template <bool FIFTH, bool LEAST>
INLINE void read_small(const uint8_t* block, float* out) {
  constexpr int BITS = LEAST ? 4 : 2, CODES = BITS + (FIFTH ? 4 : 0), ZERO = LEAST ? 0 : FIFTH ? 16 : 8;
  const float scale = half_at(block), least = LEAST ? half_at(block + 2) : 0;
  uint8_t codes[GROUP];
  nibbles(block + CODES, codes);
  if (FIFTH) fifth_bits(block + BITS, codes);
  for (int i = 0; i < GROUP; i++) {
    const float number = scale * static_cast<float>(codes[i] - ZERO);
    out[i] = LEAST ? number + least : number;
  }
}

INLINE void read_q8_0(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  const int8_t* codes = reinterpret_cast<const int8_t*>(block + 2);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(codes[i]);
}

// A large block's codes, perhaps of a table's numbers; the integer scale and minimum (if any) of each FINE of them, and
// the block's two factors of these.
struct LargeBlock {
  int8_t codes[LARGE];
  int scales[PARTS], least[PARTS];
  float scale, lowest;

  void set_scale(int group, int scale) { scales[2 * group] = scales[2 * group + 1] = scale; }
};

// 16 bytes of a scale's nibble and a least value's, 64 of codes, a half of each.
void split_q2_k(const uint8_t* block, LargeBlock& to) {
  const uint8_t* codes = block + 16;
  to.scale = half_at(block + 80);
  to.lowest = half_at(block + 82);
  for (int part = 0; part < PARTS; part++) {
    to.scales[part] = block[part] & 15;
    to.least[part] = block[part] >> 4;
    const uint8_t* from = codes + part / 8 * 32 + part % 2 * 16;
    const int shift = part % 8 / 2 * 2;
    for (int i = 0; i < FINE; i++) to.codes[part * FINE + i] = from[i] >> shift & 3;
  }
}

// 32 bytes of high bits, 64 of low ones, 12 of scales, a half.
void split_q3_k(const uint8_t* block, LargeBlock& to) {
  const uint8_t *high = block, *low = block + 32, *packed = block + 96;
  to.scale = half_at(block + 108);
  for (int part = 0; part < PARTS; part++) {
    const int four = packed[part % 8] >> part / 8 * 4 & 15, two = packed[8 + part % 4] >> part / 4 * 2 & 3;
    to.scales[part] = (four | two << 4) - 32;
    const uint8_t *from = low + part / 8 * 32 + part % 2 * 16, *bits = high + part % 2 * 16;
    const int shift = part % 8 / 2 * 2, bit = part / 2;
    for (int i = 0; i < FINE; i++)
      to.codes[part * FINE + i] = static_cast<int8_t>((from[i] >> shift & 3) - ((bits[i] >> bit & 1) ^ 1) * 4);
  }
}

// A half of scales and one of least values, 12 bytes of both, 128 of codes; with five bits, 32 bytes of the fifth before
// the codes.
template <bool FIFTH>
void split_q4_k(const uint8_t* block, LargeBlock& to) {
  to.scale = half_at(block);
  to.lowest = half_at(block + 2);
  uint8_t scales[8], least[8];
  six_bits(block + 4, scales, least);
  for (int group = 0; group < 8; group++) {
    for (int half = 0; half < 2; half++) {
      to.scales[2 * group + half] = scales[group];
      to.least[2 * group + half] = least[group];
    }
    const uint8_t *fifth = block + 16, *from = fifth + (FIFTH ? 32 : 0) + group / 2 * 32;
    for (int i = 0; i < GROUP; i++) {
      const int code = from[i] >> group % 2 * 4 & 15;
      to.codes[group * GROUP + i] = static_cast<int8_t>(FIFTH ? code | (fifth[i] >> group & 1) << 4 : code);
    }
  }
}

// 128 bytes of low nibbles, 64 of two high bits, 16 scales as int8, a half.
void split_q6_k(const uint8_t* block, LargeBlock& to) {
  const uint8_t *low = block, *high = block + 128;
  to.scale = half_at(block + 208);
  for (int part = 0; part < PARTS; part++) {
    to.scales[part] = static_cast<int8_t>(block[192 + part]);
    const int group = part / 2 % 4;  // of 32 values, in a half of the block
    const uint8_t* from = low + part / 8 * 64 + group % 2 * 32 + part % 2 * 16;
    const uint8_t* bits = high + part / 8 * 32 + part % 2 * 16;
    for (int i = 0; i < FINE; i++)
      to.codes[part * FINE + i] =
          static_cast<int8_t>(((from[i] >> group / 2 * 4 & 15) | (bits[i] >> group * 2 & 3) << 4) - 32);
  }
}

// A half, two high bits of each scale, low nibbles of them, codes.
void split_iq4_xs(const uint8_t* block, LargeBlock& to) {
  to.scale = half_at(block);
  uint16_t high;
  std::memcpy(&high, block + 2, 2);
  for (int group = 0; group < 8; group++) {
    to.set_scale(group, ((block[4 + group / 2] >> group % 2 * 4 & 15) | (high >> group * 2 & 3) << 4) - 32);
    nibbles(block + 8 + group * 16, reinterpret_cast<uint8_t*>(to.codes + group * GROUP));
  }
}

template <class Number>
INLINE Number number_at(const uint8_t* from) {
  Number number;
  std::memcpy(&number, from, sizeof number);
  return number;
}

// The i-th of the nibbles in bytes, the low one first, as a scale: 1, 3, 5 ..
INLINE int odd_nibble(const uint8_t* from, int i) { return 2 * (from[i / 2] >> i % 2 * 4 & 15) + 1; }

// The codes of eight values: two times four coordinates of points, and a bit of sign for each.
INLINE void eight_codes(const uint8_t* first, const uint8_t* second, int signs, int8_t* to) {
  for (int i = 0; i < 8; i++) to[i] = static_cast<int8_t>((i < 4 ? first[i] : second[i - 4]) | (signs >> i & 1) << 3);
}

INLINE void eight_codes(const uint8_t* point, int signs, int8_t* to) { eight_codes(point, point + 4, signs, to); }

// Seven signs, and an eighth that makes the number of minus signs even.
INLINE int even_signs(uint32_t seven) { return static_cast<int>(seven | static_cast<uint32_t>(__builtin_parity(seven)) << 7); }

// A half; of each group four codes, then a word of four times seven signs, and its scale.
void split_iq2_xxs(const uint8_t* block, LargeBlock& to) {
  const uint8_t* grid = grid_of(Encoding::IQ2_XXS);
  to.scale = half_at(block) / 8;
  for (int group = 0; group < 8; group++) {
    const uint8_t* from = block + 2 + group * 8;
    const uint32_t word = number_at<uint32_t>(from + 4);
    to.set_scale(group, static_cast<int>(2 * (word >> 28) + 1));
    for (int i = 0; i < 4; i++)
      eight_codes(grid + 8 * from[i], even_signs(word >> 7 * i & 127), to.codes + group * GROUP + 8 * i);
  }
}

// A half; words of a code of 9 bits and seven signs; nibbles of scales.
void split_iq2_xs(const uint8_t* block, LargeBlock& to) {
  const uint8_t* grid = grid_of(Encoding::IQ2_XS);
  to.scale = half_at(block) / 8;
  for (int part = 0; part < PARTS; part++) to.scales[part] = odd_nibble(block + 66, part);
  for (int i = 0; i < LARGE / 8; i++) {
    const uint16_t word = number_at<uint16_t>(block + 2 + 2 * i);
    eight_codes(grid + 8 * (word & 511), even_signs(word >> 9), to.codes + 8 * i);
  }
}

// A half, 32 bytes of codes, 32 of signs, two high bits of each code, nibbles of scales.
void split_iq2_s(const uint8_t* block, LargeBlock& to) {
  const uint8_t *grid = grid_of(Encoding::IQ2_S), *codes = block + 2, *signs = block + 34, *high = block + 66;
  to.scale = half_at(block) / 8;
  for (int part = 0; part < PARTS; part++) to.scales[part] = odd_nibble(block + 74, part);
  for (int i = 0; i < LARGE / 8; i++)
    eight_codes(grid + 8 * (codes[i] | (high[i / 4] >> i % 4 * 2 & 3) << 8), signs[i], to.codes + 8 * i);
}

// A half, 64 bytes of codes; of each group a word of four times seven signs, and its scale.
void split_iq3_xxs(const uint8_t* block, LargeBlock& to) {
  const uint8_t *grid = grid_of(Encoding::IQ3_XXS), *codes = block + 2;
  to.scale = half_at(block) / 4;
  for (int group = 0; group < 8; group++) {
    const uint32_t word = number_at<uint32_t>(block + 66 + group * 4);
    to.set_scale(group, static_cast<int>(2 * (word >> 28) + 1));
    for (int i = 0; i < 4; i++, codes += 2)
      eight_codes(grid + 4 * codes[0], grid + 4 * codes[1], even_signs(word >> 7 * i & 127), to.codes + group * GROUP + 8 * i);
  }
}

// A half, 64 bytes of codes, a high bit of each, 32 bytes of signs, nibbles of scales.
void split_iq3_s(const uint8_t* block, LargeBlock& to) {
  const uint8_t *grid = grid_of(Encoding::IQ3_S), *codes = block + 2, *high = block + 66, *signs = block + 74;
  to.scale = half_at(block);
  for (int group = 0; group < 8; group++) to.set_scale(group, odd_nibble(block + 106, group));
  const auto point = [&](int i) { return grid + 4 * (codes[i] | (high[i / 8] >> i % 8 & 1) << 8); };
  for (int i = 0; i < LARGE / 8; i++) eight_codes(point(2 * i), point(2 * i + 1), signs[i], to.codes + 8 * i);
}

// A half, 32 bytes of codes; of each group a word of four times three high bits, its scale, and one sign.
void split_iq1_s(const uint8_t* block, LargeBlock& to) {
  const uint8_t *grid = grid_of(Encoding::IQ1_S), *codes = block + 2;
  to.scale = half_at(block) / 8;
  for (int group = 0; group < 8; group++) {
    const uint16_t word = number_at<uint16_t>(block + 34 + group * 2);
    to.set_scale(group, 2 * (word >> 12 & 7) + 1);
    for (int i = 0; i < 4; i++, codes++)
      eight_codes(grid + 8 * (*codes | (word >> 3 * i & 7) << 8), word >> 15 ? 255 : 0, to.codes + group * GROUP + 8 * i);
  }
}

// 32 bytes of codes; a nibble for each of three high bits and a sign; words of four scales and four bits of the half.
void split_iq1_m(const uint8_t* block, LargeBlock& to) {
  const uint8_t *grid = grid_of(Encoding::IQ1_S), *high = block + 32;
  int bits = 0;
  for (int i = 0; i < 4; i++) {
    const uint16_t word = number_at<uint16_t>(block + 48 + 2 * i);
    bits |= word >> 12 << 4 * i;
    for (int k = 0; k < 4; k++) to.scales[4 * i + k] = 2 * (word >> 3 * k & 7) + 1;
  }
  to.scale = from_half(static_cast<uint16_t>(bits)) / 8;
  for (int i = 0; i < LARGE / 8; i++) {
    const int nibble = high[i / 2] >> i % 2 * 4;
    eight_codes(grid + 8 * (block[i] | (nibble & 7) << 8), nibble & 8 ? 255 : 0, to.codes + 8 * i);
  }
}

// Bytes of five codes each, as fractions in base 3, the last four bytes of four; a half.
void split_tq1_0(const uint8_t* block, LargeBlock& to) {
  to.scale = half_at(block + 52);
  std::fill_n(to.scales, PARTS, 1);
  int8_t* codes = to.codes;
  const auto unpack = [&](const uint8_t* from, int count, int each) {
    for (int digit = 0, power = 1; digit < each; digit++, power *= 3)
      for (int i = 0; i < count; i++) *codes++ = static_cast<int8_t>(static_cast<uint8_t>(from[i] * power) * 3 >> 8);
  };
  unpack(block, 32, 5);
  unpack(block + 32, 16, 5);
  unpack(block + 48, 4, 4);
}

// 64 bytes of codes, a half.
void split_tq2_0(const uint8_t* block, LargeBlock& to) {
  to.scale = half_at(block + 64);
  std::fill_n(to.scales, PARTS, 1);
  for (int i = 0; i < LARGE; i++) to.codes[i] = block[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

// Calls use(block, first) with each large block of a row and the index of its first value; false for an encoding
// without such.
template <class Use>
INLINE bool large_blocks(Encoding encoding, const uint8_t* row, int count, Use use) {
  const auto each = [&](int bytes, auto split) {
    LargeBlock block{};
    for (int first = 0; first < count; first += LARGE, row += bytes) {
      split(row, block);
      use(block, first);
    }
    return true;
  };
  switch (encoding) {
    case Encoding::Q2_K: return each(84, split_q2_k);
    case Encoding::Q3_K: return each(110, split_q3_k);
    case Encoding::Q4_K: return each(144, split_q4_k<false>);
    case Encoding::Q5_K: return each(176, split_q4_k<true>);
    case Encoding::Q6_K: return each(210, split_q6_k);
    case Encoding::IQ4_XS: return each(136, split_iq4_xs);
    case Encoding::IQ3_S: return each(110, split_iq3_s);
    case Encoding::IQ3_XXS: return each(98, split_iq3_xxs);
    case Encoding::IQ2_S: return each(82, split_iq2_s);
    case Encoding::IQ2_XS: return each(74, split_iq2_xs);
    case Encoding::IQ2_XXS: return each(66, split_iq2_xxs);
    case Encoding::IQ1_M: return each(56, split_iq1_m);
    case Encoding::IQ1_S: return each(50, split_iq1_s);
    case Encoding::TQ1_0: return each(54, split_tq1_0);
    case Encoding::TQ2_0: return each(66, split_tq2_0);
    default: return false;
  }
}

INLINE void read_iq4_nl(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  uint8_t codes[GROUP];
  nibbles(block + 2, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(table_of(Encoding::IQ4_NL)[codes[i]]);
}

// A power of two, and codes of floats of 4 bits.
INLINE float power_of_two(uint8_t exponent) {
  const uint32_t bits = exponent < 2 ? 0x00200000u << exponent : static_cast<uint32_t>(exponent - 1) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return scale;
}

INLINE void read_mxfp4(const uint8_t* block, float* out) {
  const float scale = power_of_two(*block);
  uint8_t codes[GROUP];
  nibbles(block + 1, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(table_of(Encoding::MXFP4)[codes[i]]);
}

// A half and a byte for the zero point, nibbles.
INLINE void read_int4_zero_point(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  uint8_t codes[GROUP];
  nibbles(block + 3, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(codes[i] - block[2]);
}

INLINE float float_at(const uint8_t* from) {
  float x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// A float, nibbles: bitsandbytes' create_normal_map.
INLINE void read_nf4(const uint8_t* block, float* out) {
  static constexpr float NORMAL[TABLE] = {
      -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
      -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
      0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
  const float scale = float_at(block);
  uint8_t codes[GROUP];
  nibbles(block + 4, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * NORMAL[codes[i]];
}

// A float8_e4m3fn is its significand times 2^(exponent - 10), or NaN.
INLINE constexpr int exponent_of(uint8_t bits) { return bits & 0x78 ? bits >> 3 & 15 : 1; }
INLINE constexpr int significand_of(uint8_t bits) { return (bits & 7) | (bits & 0x78 ? 8 : 0); }
INLINE constexpr bool is_nan(uint8_t bits) { return (bits & 127) == 127; }

struct Float8 {
  float numbers[256];

  constexpr Float8() : numbers() {
    for (int i = 0; i < 256; i++) {
      const uint8_t bits = static_cast<uint8_t>(i);
      float power = 1.f / 1024;
      for (int e = 0; e < exponent_of(bits); e++) power *= 2;
      numbers[i] = is_nan(bits) ? NAN : (bits & 0x80 ? -power : power) * static_cast<float>(significand_of(bits));
    }
  }
};

// A float, and a byte for each number.
INLINE void read_f8_e4m3(const uint8_t* block, float* out) {
  static constexpr Float8 E4M3;
  const float scale = float_at(block);
  for (int i = 0; i < GROUP; i++) out[i] = scale * E4M3.numbers[block[4 + i]];
}

// Half of a float of 8 bits, e4m3 without a sign.
INLINE float half_of_e4m3(uint8_t bits) {
  return bits == 0x7f ? 0 : std::ldexp(static_cast<float>(significand_of(bits)), exponent_of(bits) - 11);
}

// NVFP4: the scales of four groups of FINE, and their codes of floats of 4 bits. Calls take(first, scale, codes) for
// each group, with the index of its first value.
template <class Take>
INLINE void fine_groups(const uint8_t* row, int count, Take take) {
  for (int first = 0; first < count; first += FINE) {
    const uint8_t* block = row + first / 64 * 36;
    const uint8_t* from = block + 4 + first % 64 / 2;
    int8_t codes[FINE];
    for (int i = 0; i < FINE / 2; i++) {
      codes[i] = from[i] & 15;
      codes[i + FINE / 2] = static_cast<int8_t>(from[i] >> 4);
    }
    take(first, half_of_e4m3(block[first % 64 / FINE]), codes);
  }
}

template <class Read>
INLINE void blocks(const uint8_t* row, int count, int bytes, float* out, Read read) {
  for (int i = 0; i < count / GROUP; i++) read(row + static_cast<size_t>(i) * bytes, out + static_cast<size_t>(i) * GROUP);
}

void read_numbers(Encoding encoding, const uint8_t* row, int count, float* out) {
  switch (encoding) {
    case Encoding::F32: std::memcpy(out, row, static_cast<size_t>(count) * sizeof(float)); return;
    case Encoding::F16: halves(row, count, out); return;
    case Encoding::BF16:
      for (int i = 0; i < count; i++) {
        uint16_t high;
        std::memcpy(&high, row + 2 * static_cast<size_t>(i), 2);
        const uint32_t bits = static_cast<uint32_t>(high) << 16;
        std::memcpy(out + i, &bits, 4);
      }
      return;
    case Encoding::Q4_0: return blocks(row, count, 18, out, read_small<false, false>);
    case Encoding::Q4_1: return blocks(row, count, 20, out, read_small<false, true>);
    case Encoding::Q5_0: return blocks(row, count, 22, out, read_small<true, false>);
    case Encoding::Q5_1: return blocks(row, count, 24, out, read_small<true, true>);
    case Encoding::Q8_0: return blocks(row, count, 34, out, read_q8_0);
    case Encoding::IQ4_NL: return blocks(row, count, 18, out, read_iq4_nl);
    case Encoding::MXFP4: return blocks(row, count, 17, out, read_mxfp4);
    case Encoding::INT4_ZERO_POINT: return blocks(row, count, 19, out, read_int4_zero_point);
    case Encoding::NF4: return blocks(row, count, 20, out, read_nf4);
    case Encoding::F8_E4M3: return blocks(row, count, 36, out, read_f8_e4m3);
    case Encoding::NVFP4:
      return fine_groups(row, count, [&](int first, float scale, const int8_t* codes) {
        for (int i = 0; i < FINE; i++) out[first + i] = scale * static_cast<float>(table_of(encoding)[codes[i]]);
      });
    default: break;
  }
  const int8_t* table = table_of(encoding);
  large_blocks(encoding, row, count, [&](const LargeBlock& block, int first) {
    for (int part = 0; part < PARTS; part++) {
      const float times = block.scale * static_cast<float>(block.scales[part]);
      const float low = block.lowest * static_cast<float>(block.least[part]);
      for (int i = 0; i < FINE; i++) {
        const int at = part * FINE + i;
        const int8_t code = block.codes[at];
        out[first + at] = times * static_cast<float>(table ? table[code] : code) - low;
      }
    }
  });
}

INLINE bool is_ternary(Encoding encoding) { return encoding == Encoding::TQ1_0 || encoding == Encoding::TQ2_0; }

// The codes, scales and least values of 4 bits that an encoding has, two codes in a byte. As halves: the products
// of a large block are rounded to them.
bool read_codes(Encoding encoding, const uint8_t* row, int count, uint8_t* codes, float* scales, float* least) {
  const int groups = count / GROUP;
  uint8_t apart[GROUP];
  const auto join = [&](int group) {
    for (int i = 0; i < GROUP / 2; i++)
      codes[group * (GROUP / 2) + i] = static_cast<uint8_t>(apart[2 * i] | apart[2 * i + 1] << 4);
  };
  if (encoding == Encoding::Q4_0 || encoding == Encoding::Q4_1) {
    const bool has_least = encoding == Encoding::Q4_1;
    for (int g = 0; g < groups; g++, row += has_least ? 20 : 18) {
      scales[g] = half_at(row);
      least[g] = has_least ? half_at(row + 2) : -8 * scales[g];
      nibbles(row + (has_least ? 4 : 2), apart);
      join(g);
    }
    return true;
  }
  if (encoding == Encoding::INT4_ZERO_POINT) {
    for (int g = 0; g < groups; g++, row += 19) {
      scales[g] = half_at(row);
      least[g] = -scales[g] * row[2];
      nibbles(row + 3, apart);
      join(g);
    }
    return true;
  }
  if (encoding != Encoding::Q4_K && !is_ternary(encoding)) return false;
  return large_blocks(encoding, row, count, [&](const LargeBlock& block, int first) {
    for (int part = 0; part < LARGE / GROUP; part++) {
      const int group = first / GROUP + part;
      scales[group] = block.scale * static_cast<float>(block.scales[2 * part]);
      least[group] = is_ternary(encoding) ? -scales[group] : -block.lowest * static_cast<float>(block.least[2 * part]);
      std::memcpy(apart, block.codes + part * GROUP, GROUP);
      join(group);
    }
  });
}

constexpr float MOST_INT4 = 15;
constexpr int LANES = 16;

// Compilers turn them into what the instruction set has. A comparison gives a Chosen, for ?:.
typedef float Lanes __attribute__((vector_size(LANES * sizeof(float))));

INLINE Lanes lanes_at(const float* from) {
  Lanes x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

INLINE Lanes less(Lanes a, Lanes b) { return a < b ? a : b; }
INLINE Lanes more(Lanes a, Lanes b) { return a > b ? a : b; }

// Round to nearest, ties to even; |x| is below 2^22.
INLINE Lanes whole(Lanes x) { return (x + 12582912.f) - 12582912.f; }

// x / by, and 0 where `by` is not above 0.
INLINE Lanes over(Lanes x, Lanes by) { return by > 0 ? x / by : x - x; }

INLINE Lanes clipped(Lanes x, float least, float most) { return less(more(x, Lanes{} + least), Lanes{} + most); }

INLINE float greatest(const float* x, int count) {
  Lanes most{};
  int i = 0;
  for (; i + LANES <= count; i += LANES) {
    const Lanes given = lanes_at(x + i);
    most = more(most, more(given, -given));
  }
  float all = 0;
  for (int n = 0; n < LANES; n++) all = std::max(all, most[n]);
  for (; i < count; i++) all = std::max(all, std::fabs(x[i]));
  return all;
}

INLINE void store_codes(Lanes x, int8_t* codes) {
  int32_t wide[LANES];
  for (int n = 0; n < LANES; n++) wide[n] = static_cast<int32_t>(x[n]);
  for (int n = 0; n < LANES; n++) codes[n] = static_cast<int8_t>(wide[n]);
}

// One scale for all.
void round_row(const float* x, int count, int8_t* codes, float* scale) {
  *scale = greatest(x, count) / MOST_INT8;
  const float inverse = *scale > 0 ? 1 / *scale : 0;
  int i = 0;
  for (; i + LANES <= count; i += LANES) store_codes(whole(lanes_at(x + i) * inverse), codes + i);
  for (; i < count; i++) codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
}

// A scale for each GROUP, a half.
void round_groups(const float* x, int count, int8_t* codes, float* scales) {
  for (int g = 0; g < count / GROUP; g++, x += GROUP, codes += GROUP) {
    float scale = std::min(greatest(x, GROUP) / MOST_INT8, LARGEST_HALF);
    to_halves_and_back(&scale, 1);
    scales[g] = scale;
    for (int i = 0; i < GROUP; i += LANES)
      store_codes(whole(clipped(over(lanes_at(x + i), Lanes{} + scale), -MOST_INT8, MOST_INT8)), codes + i);
  }
}

// Groups of GROUP codes in blocks of `bytes`: take(block, codes) returns their scale.
template <class Take>
INLINE bool own_groups(const uint8_t* row, int count, int bytes, const OwnCodes& to, Take take) {
  for (int g = 0; g < count / GROUP; g++) to.scales[g] = take(row + static_cast<size_t>(g) * bytes, to.codes + g * GROUP);
  return true;
}

// A group of float8_e4m3fn as int8: those of the greatest exponent, and of three below it, exactly, smaller ones rounded
// to even. Where the scale would not be a normal half, as floats are.
INLINE void f8_group(const uint8_t* block, int8_t* codes, float* scale) {
  constexpr int BITS = 3;  // that 7 leave to significands of 4
  int most = 1;
  bool has_nan = false;
  for (int i = 0; i < GROUP; i++) {
    const uint8_t bits = block[4 + i];
    has_nan |= is_nan(bits);
    most = std::max(most, exponent_of(bits));
  }
  *scale = std::ldexp(float_at(block), most - 10 - BITS);
  if (has_nan || !(std::fabs(*scale) >= SMALLEST_HALF && std::fabs(*scale) <= LARGEST_HALF)) {
    float numbers[GROUP];
    read_f8_e4m3(block, numbers);
    return round_groups(numbers, GROUP, codes, scale);
  }
  for (int i = 0; i < GROUP; i++) {
    const uint8_t bits = block[4 + i];
    const int down = most - exponent_of(bits), wide = significand_of(bits) << BITS;
    const int size = (wide + (1 << down >> 1) - (down && !(wide >> down & 1))) >> down;
    codes[i] = static_cast<int8_t>(bits & 0x80 ? -size : size);
  }
}

bool own_codes(Format format, Encoding encoding, const uint8_t* row, int count, const OwnCodes& to) {
  const auto from_nibbles = [](const uint8_t* block, int8_t* codes) { nibbles(block, reinterpret_cast<uint8_t*>(codes)); };
  const auto half_first = [&](const uint8_t* block, int8_t* codes) {
    from_nibbles(block + 2, codes);
    return half_at(block);
  };
  if (format == Format::INT8_BLOCK && encoding == Encoding::Q8_0)
    return own_groups(row, count, 34, to, [](const uint8_t* block, int8_t* codes) {
      std::memcpy(codes, block + 2, GROUP);
      return half_at(block);
    });
  if ((format == Format::INT8_BLOCK || format == Format::INT6_BLOCK) && encoding == Encoding::Q5_0)
    return own_groups(row, count, 22, to, [&](const uint8_t* block, int8_t* codes) {
      from_nibbles(block + 6, codes);
      fifth_bits(block + 2, reinterpret_cast<uint8_t*>(codes));
      for (int i = 0; i < GROUP; i++) codes[i] = static_cast<int8_t>(codes[i] - 16);
      return half_at(block);
    });
  if (format == Format::INT4_TABLE && encoding == Encoding::MXFP4)
    return own_groups(row, count, 17, to, [&](const uint8_t* block, int8_t* codes) {
      from_nibbles(block + 1, codes);
      return power_of_two(*block);
    });
  if (format == Format::INT4_TABLE && encoding == Encoding::NF4)
    return own_groups(row, count, 20, to, [&](const uint8_t* block, int8_t* codes) {
      from_nibbles(block + 4, codes);
      return float_at(block) / MOST_INT8;
    });
  if (format == Format::INT4_TABLE && (encoding == Encoding::Q4_0 || encoding == Encoding::IQ4_NL))
    return own_groups(row, count, 18, to, half_first);
  if (format == Format::INT4_TABLE_FINE && encoding == Encoding::NVFP4) {
    fine_groups(row, count, [&](int first, float scale, const int8_t* codes) {
      std::memcpy(to.codes + first, codes, FINE);
      to.scales[first / FINE] = scale;
    });
    return true;
  }
  if (format == Format::INT4_ZERO_POINT && encoding == Encoding::INT4_ZERO_POINT) {
    for (int g = 0; g < count / GROUP; g++) to.least[g] = row[g * 19 + 2];
    return own_groups(row, count, 19, to, [&](const uint8_t* block, int8_t* codes) {
      from_nibbles(block + 3, codes);
      return half_at(block);
    });
  }
  if (format == Format::INT8_BLOCK && encoding == Encoding::F8_E4M3) {
    for (int g = 0; g < count / GROUP; g++) f8_group(row + static_cast<size_t>(g) * 36, to.codes + g * GROUP, to.scales + g);
    return true;
  }
  const bool fits = to.large_scales || (format == Format::INT4_TABLE && is_ternary(encoding));
  if (!fits || has_table(format) != (table_of(encoding) != nullptr)) return false;
  const int each = depth_of(format);
  return large_blocks(encoding, row, count, [&](const LargeBlock& block, int first) {
    std::memcpy(to.codes + first, block.codes, LARGE);
    if (to.large_scales) to.large_scales[first / LARGE] = block.scale;
    if (to.large_least) to.large_least[first / LARGE] = -block.lowest;
    for (int g = 0; g < LARGE / each; g++) {
      to.scales[first / each + g] = to.large_scales ? static_cast<float>(block.scales[g * each / FINE]) : block.scale;
      if (to.least) to.least[first / each + g] = static_cast<float>(block.least[g * each / FINE]);
    }
  });
}

// LANES groups of values [GROUP, LANES], quantized in parallel.
struct Coding {
  Lanes codes[GROUP], scales, least, error;
};

INLINE Lanes as_halves(Lanes x) {
  float numbers[LANES];
  const Lanes given = clipped(x, -LARGEST_HALF, LARGEST_HALF);
  std::memcpy(numbers, &given, sizeof given);
  to_halves_and_back(numbers, LANES);
  return lanes_at(numbers);
}

// Rounds to codes with these scales and least values, as halves hold them.
INLINE void code_groups(const Lanes* x, Lanes scales, Lanes least, Coding& to) {
  to.scales = as_halves(scales);
  to.least = as_halves(least);
  to.error = Lanes{};
  for (int i = 0; i < GROUP; i++) {
    const Lanes shifted = x[i] - to.least;
    to.codes[i] = whole(clipped(over(shifted, to.scales), 0, MOST_INT4));
    const Lanes difference = to.codes[i] * to.scales - shifted;
    to.error += difference * difference;
  }
}

// Int4 codes: llama.cpp's make_qkx2_quants. Several ranges, a little narrower and wider than a group's, give codes;
// the least-squares scale and minimum of each are compared, and the pair with the least error is kept. They are halves.
INLINE void search_groups(const Lanes* x, Coding& best) {
  constexpr int TRIALS = 11;
  Lanes lowest = x[0], highest = x[0], total{};
  for (int i = 0; i < GROUP; i++) {
    lowest = less(lowest, x[i]);
    highest = more(highest, x[i]);
    total += x[i];
  }
  const Lanes extent = highest - lowest;
  code_groups(x, extent / MOST_INT4, lowest, best);
  Coding tried, candidate;
  for (int trial = 0; trial < TRIALS; trial++) {
    // As NumPy rounds arange(-1, 1.01, 0.2) to floats.
    const float step = static_cast<float>(-1.0 + 0.2 * trial);
    const Lanes width = extent / (MOST_INT4 + step);
    code_groups(x, width, lowest, tried);
    Lanes products{}, ones{}, squares{};
    for (int i = 0; i < GROUP; i++) {
      const Lanes code = tried.codes[i];
      products += code * x[i];
      ones += code;
      squares += code * code;
    }
    const Lanes spread = GROUP * squares - ones * ones;
    const Lanes slope = spread > 0 ? (GROUP * products - ones * total) / spread : width;
    const Lanes start = spread > 0 ? (total - slope * ones) / GROUP : lowest;
    code_groups(x, slope, start, candidate);
    const auto better = candidate.error < best.error;
    for (int i = 0; i < GROUP; i++) best.codes[i] = better ? candidate.codes[i] : best.codes[i];
    best.scales = better ? candidate.scales : best.scales;
    best.least = better ? candidate.least : best.least;
    best.error = less(candidate.error, best.error);
  }
}

void search_row(const float* x, int count, uint8_t* codes, float* scales, float* least) {
  const int groups = count / GROUP;
  for (int first = 0; first < groups; first += LANES) {
    const int lanes = std::min(LANES, groups - first);
    float turned[GROUP][LANES] = {};
    for (int n = 0; n < lanes; n++)
      for (int i = 0; i < GROUP; i++) turned[i][n] = x[(first + n) * GROUP + i];
    Lanes numbers[GROUP];
    std::memcpy(numbers, turned, sizeof numbers);
    Coding best;
    search_groups(numbers, best);
    for (int n = 0; n < lanes; n++) {
      scales[first + n] = best.scales[n];
      least[first + n] = best.least[n];
    }
    for (int i = 0; i < GROUP; i += 2) {
      int8_t low[LANES], high[LANES];
      store_codes(best.codes[i], low);
      store_codes(best.codes[i + 1], high);
      for (int n = 0; n < lanes; n++)
        codes[((first + n) * GROUP + i) / 2] = static_cast<uint8_t>(low[n] | high[n] << 4);
    }
  }
}

const Reading reading = {read_numbers, read_codes, own_codes, round_row, round_groups, search_row};
