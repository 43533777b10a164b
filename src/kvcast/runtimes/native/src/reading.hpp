// Rows of numbers as files hold them, read and rounded.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has
//   halves(from, count, out): halves as floats;
//   to_halves_and_back(x, count): floats as near as halves come to them.
// ggml's blocks are those of ggml-common.h: a half is a float16, a nibble 4 bits. Results equal those of NumPy, as
// gguf-py computes them, bit for bit.
#pragma once

constexpr int LARGE_BLOCK = 256;
constexpr int8_t NONLINEAR[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t SMALL_FLOATS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // doubled, of e2m1

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

// 16 bytes of a scale's nibble and a least value's, 64 of codes, a half of each.
INLINE void read_q2_k(const uint8_t* block, float* out) {
  const uint8_t* codes = block + 16;
  const float scale = half_at(block + 80), least = half_at(block + 82);
  for (int part = 0; part < 16; part++) {
    const float times = scale * static_cast<float>(block[part] & 15), low = least * static_cast<float>(block[part] >> 4);
    const uint8_t* from = codes + part / 8 * 32 + part % 2 * 16;
    const int shift = part % 8 / 2 * 2;
    for (int i = 0; i < 16; i++) out[part * 16 + i] = times * static_cast<float>(from[i] >> shift & 3) - low;
  }
}

// 32 bytes of high bits, 64 of low ones, 12 of scales, a half.
INLINE void read_q3_k(const uint8_t* block, float* out) {
  const uint8_t *high = block, *low = block + 32, *packed = block + 96;
  const float scale = half_at(block + 108);
  for (int part = 0; part < 16; part++) {
    const int four = packed[part % 8] >> part / 8 * 4 & 15, two = packed[8 + part % 4] >> part / 4 * 2 & 3;
    const float times = scale * static_cast<float>((four | two << 4) - 32);
    const uint8_t *from = low + part / 8 * 32 + part % 2 * 16, *bits = high + part % 2 * 16;
    const int shift = part % 8 / 2 * 2, bit = part / 2;
    for (int i = 0; i < 16; i++) {
      const int code = (from[i] >> shift & 3) - ((bits[i] >> bit & 1) ^ 1) * 4;
      out[part * 16 + i] = times * static_cast<float>(code);
    }
  }
}

// A half of scales and one of least values, 12 bytes of both, 128 of codes.
INLINE void read_q4_k(const uint8_t* block, float* out) {
  const float scale = half_at(block), least = half_at(block + 2);
  uint8_t scales[8], lows[8];
  six_bits(block + 4, scales, lows);
  for (int part = 0; part < 8; part++) {
    const float times = scale * static_cast<float>(scales[part]), low = least * static_cast<float>(lows[part]);
    const uint8_t* from = block + 16 + part / 2 * 32;
    for (int i = 0; i < GROUP; i++) out[part * GROUP + i] = times * static_cast<float>(from[i] >> part % 2 * 4 & 15) - low;
  }
}

// The same with 32 bytes of fifth bits before the codes.
INLINE void read_q5_k(const uint8_t* block, float* out) {
  const float scale = half_at(block), least = half_at(block + 2);
  uint8_t scales[8], lows[8];
  six_bits(block + 4, scales, lows);
  for (int part = 0; part < 8; part++) {
    const float times = scale * static_cast<float>(scales[part]), low = least * static_cast<float>(lows[part]);
    const uint8_t *from = block + 48 + part / 2 * 32, *fifth = block + 16;
    for (int i = 0; i < GROUP; i++) {
      const int code = (from[i] >> part % 2 * 4 & 15) | (fifth[i] >> part & 1) << 4;
      out[part * GROUP + i] = times * static_cast<float>(code) - low;
    }
  }
}

// 128 bytes of low nibbles, 64 of two high bits, 16 scales as int8, a half.
INLINE void read_q6_k(const uint8_t* block, float* out) {
  const uint8_t *low = block, *high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float scale = half_at(block + 208);
  for (int part = 0; part < 16; part++) {
    const float times = scale * static_cast<float>(scales[part]);
    const int group = part / 2 % 4;  // of 32 numbers, in a half of the block
    const uint8_t* from = low + part / 8 * 64 + group % 2 * 32 + part % 2 * 16;
    const uint8_t* bits = high + part / 8 * 32 + part % 2 * 16;
    for (int i = 0; i < 16; i++) {
      const int code = ((from[i] >> group / 2 * 4 & 15) | (bits[i] >> group * 2 & 3) << 4) - 32;
      out[part * 16 + i] = times * static_cast<float>(code);
    }
  }
}

INLINE void read_iq4_nl(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  uint8_t codes[GROUP];
  nibbles(block + 2, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(NONLINEAR[codes[i]]);
}

// A half, two high bits of each scale, low nibbles of them, codes.
INLINE void read_iq4_xs(const uint8_t* block, float* out) {
  const float scale = half_at(block);
  uint16_t high;
  std::memcpy(&high, block + 2, 2);
  for (int part = 0; part < 8; part++) {
    const int times = ((block[4 + part / 2] >> part % 2 * 4 & 15) | (high >> part * 2 & 3) << 4) - 32;
    const float of_part = scale * static_cast<float>(times);
    uint8_t codes[GROUP];
    nibbles(block + 8 + part * 16, codes);
    for (int i = 0; i < GROUP; i++) out[part * GROUP + i] = of_part * static_cast<float>(NONLINEAR[codes[i]]);
  }
}

// A power of two, and codes of floats of 4 bits.
INLINE void read_mxfp4(const uint8_t* block, float* out) {
  const uint32_t bits = *block < 2 ? 0x00200000u << *block : static_cast<uint32_t>(*block - 1) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  uint8_t codes[GROUP];
  nibbles(block + 1, codes);
  for (int i = 0; i < GROUP; i++) out[i] = scale * static_cast<float>(SMALL_FLOATS[codes[i]]);
}

template <class Read>
INLINE void blocks(const uint8_t* row, int count, int each, int bytes, float* out, Read read) {
  for (int i = 0; i < count / each; i++) read(row + static_cast<size_t>(i) * bytes, out + static_cast<size_t>(i) * each);
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
    case Encoding::Q4_0: return blocks(row, count, GROUP, 18, out, read_small<false, false>);
    case Encoding::Q4_1: return blocks(row, count, GROUP, 20, out, read_small<false, true>);
    case Encoding::Q5_0: return blocks(row, count, GROUP, 22, out, read_small<true, false>);
    case Encoding::Q5_1: return blocks(row, count, GROUP, 24, out, read_small<true, true>);
    case Encoding::Q8_0: return blocks(row, count, GROUP, 34, out, read_q8_0);
    case Encoding::Q2_K: return blocks(row, count, LARGE_BLOCK, 84, out, read_q2_k);
    case Encoding::Q3_K: return blocks(row, count, LARGE_BLOCK, 110, out, read_q3_k);
    case Encoding::Q4_K: return blocks(row, count, LARGE_BLOCK, 144, out, read_q4_k);
    case Encoding::Q5_K: return blocks(row, count, LARGE_BLOCK, 176, out, read_q5_k);
    case Encoding::Q6_K: return blocks(row, count, LARGE_BLOCK, 210, out, read_q6_k);
    case Encoding::IQ4_NL: return blocks(row, count, GROUP, 18, out, read_iq4_nl);
    case Encoding::IQ4_XS: return blocks(row, count, LARGE_BLOCK, 136, out, read_iq4_xs);
    case Encoding::MXFP4: return blocks(row, count, GROUP, 17, out, read_mxfp4);
  }
}

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
  } else if (encoding == Encoding::Q4_K) {
    for (int first = 0; first < groups; first += 8, row += 144) {
      const float scale = half_at(row), low = half_at(row + 2);
      uint8_t times[8], lows[8];
      six_bits(row + 4, times, lows);
      for (int part = 0; part < 8; part++) {
        scales[first + part] = scale * static_cast<float>(times[part]);
        least[first + part] = -low * static_cast<float>(lows[part]);
        for (int i = 0; i < GROUP; i++) apart[i] = row[16 + part / 2 * 32 + i] >> part % 2 * 4 & 15;
        join(first + part);
      }
    }
  } else {
    return false;
  }
  return true;
}

constexpr float MOST_INT8 = 127, MOST_INT4 = 15, LARGEST_HALF = 65504;
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

// To the nearest whole number, of equally near ones to the even; |x| is below 2^22.
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

// LANES groups of numbers [GROUP, LANES], which are coded side by side.
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
// of the scale and least value that fit these codes best (least squares), those with the least error stay. They
// are halves.
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

const Reading reading = {read_numbers, read_codes, round_row, round_groups, search_row};
