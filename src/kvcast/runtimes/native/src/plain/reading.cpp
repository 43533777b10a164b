// Rows of files in plain C++.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "halves.hpp"
#include "plain/plain.hpp"

#define INLINE inline

namespace kvcast {
namespace {

void halves(const uint8_t* from, int count, float* out) {
  for (int i = 0; i < count; i++) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * static_cast<size_t>(i), 2);
    out[i] = from_half(bits);
  }
}

void to_halves_and_back(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] = from_half(to_half(x[i]));
}

#include "vec/dequantize.hpp"

}  // namespace

const Reading plain_reading = reading;

}  // namespace kvcast
