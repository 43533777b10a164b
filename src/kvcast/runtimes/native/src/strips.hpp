// How products' tiles lie in memory, where outputs lie in strips, one after the other.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has
//   STRIP, FLOATS: outputs of a strip of codes, and of one of floats;
//   SIDE: inputs of an output that lie side by side, 4 or 8;
//   SIGNS: the mask that is xored to int8 codes as they are stored.
#pragma once

// Copies count numbers, and zeros up to BLOCK of them.
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
  for (size_t begin = 0; begin < inputs; begin += 16)  // the written part lies in the first cache
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

// Where input k of output n of a strip lies.
INLINE size_t place(int n, int k) { return k / SIDE * SIDE * STRIP + SIDE * n + k % SIDE; }

// SIDE inputs from k on of an output of stored int8 codes; zeros past their end.
INLINE uint64_t side(const Stored& from, int n, int k) {
  uint64_t bits = 0;
  if (n < from.count && k < from.inputs)
    std::memcpy(&bits, static_cast<const int8_t*>(from.codes) + static_cast<size_t>(n) * from.inputs + k,
                std::min(SIDE, from.inputs - k));
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

// The formats of groups: [BLOCK / STRIP, k / GROUP] of a group's scales (halves [STRIP]), its least values
// likewise (if any) and its codes; then bias.
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

// Bytes of a tile whose groups have `each` of a strip.
size_t bytes(size_t each, int inputs) { return BLOCK / STRIP * each * (filled(inputs) / GROUP) + BLOCK * sizeof(float); }

}  // namespace groups

// Codes [GROUP / SIDE, STRIP, SIDE].
namespace int8_block {

constexpr size_t EACH = groups::HALVES + GROUP * STRIP;

size_t bytes(int inputs) { return groups::bytes(EACH, inputs); }

void pack(const Stored& from, uint8_t* tile) {
  for (int strip = 0; strip < BLOCK / STRIP; strip++)
    for (int g = 0; g < filled(from.inputs) / GROUP; g++, tile += EACH) {
      groups::pack_halves(from.scales, from, strip, g, tile);
      pack_codes(from, strip, g * GROUP, GROUP, tile + groups::HALVES);
    }
  copy_or_zeros(from.bias, from.count, tile);
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  tile += n / STRIP * EACH * (filled(inputs) / GROUP);
  const int i = n % STRIP;
  for (int k = 0; k < inputs; k++) {
    const uint8_t* group = tile + k / GROUP * EACH;
    out[k] = code(group[groups::HALVES + place(i, k % GROUP)]) * groups::unpack_half(group, i);
  }
}

}  // namespace int8_block

// Codes [GROUP / 2 / SIDE, STRIP, SIDE]: input k of the group in the low half of a byte, k + GROUP / 2 in the
// high one.
namespace int4_min {

constexpr size_t HEAD = 2 * groups::HALVES, EACH = HEAD + GROUP * STRIP / 2;

size_t bytes(int inputs) { return groups::bytes(EACH, inputs); }

int stored_code(const Stored& from, int n, int k) {
  if (n >= from.count || k >= from.inputs) return 0;
  return static_cast<const uint8_t*>(from.codes)[static_cast<size_t>(n) * ((from.inputs + 1) / 2) + k / 2] >> k % 2 * 4 & 15;
}

void pack(const Stored& from, uint8_t* tile) {
  for (int strip = 0; strip < BLOCK / STRIP; strip++)
    for (int g = 0; g < filled(from.inputs) / GROUP; g++, tile += EACH) {
      groups::pack_halves(from.scales, from, strip, g, tile);
      groups::pack_halves(from.least, from, strip, g, tile + groups::HALVES);
      for (int i = 0; i < STRIP; i++)
        for (int k = 0; k < GROUP / 2; k++) {
          const int n = strip * STRIP + i, low = g * GROUP + k;
          tile[HEAD + place(i, k)] =
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
    const int high = k % GROUP / (GROUP / 2);
    const int code = group[HEAD + place(i, k % (GROUP / 2))] >> 4 * high & 15;
    out[k] = std::fma(static_cast<float>(code), groups::unpack_half(group, i), groups::unpack_half(group + groups::HALVES, i));
  }
}

}  // namespace int4_min
