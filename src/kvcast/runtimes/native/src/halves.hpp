// Halves (IEEE 754 binary16) in plain C++.
#pragma once
#include <cstdint>
#include <cstring>

namespace kvcast {

inline float from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
  uint32_t bits;
  if (rest >= 0x7c00u) {
    bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;  // infinity, NaN
  } else if (rest >= 0x400u) {
    bits = sign | ((rest << 13) + ((127u - 15u) << 23));
  } else {  // a subnormal is a multiple of 2^-24
    const float value = static_cast<float>(rest) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Round to nearest, ties to even.
inline uint16_t to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x477ff000u) return sign | 0x7c00u;
  if (bits < 0x38800000u) {  // subnormal: adding 0.5 leaves the nearest multiple of 2^-24 in the last bits
    float shifted;
    std::memcpy(&shifted, &bits, 4);
    shifted += 0.5f;
    std::memcpy(&bits, &shifted, 4);
    return sign | static_cast<uint16_t>(bits - 0x3f000000u);
  }
  return sign | static_cast<uint16_t>((bits - ((127u - 15u) << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

inline void to_halves(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; i++) to[i] = to_half(from[i]);
}

}  // namespace kvcast
