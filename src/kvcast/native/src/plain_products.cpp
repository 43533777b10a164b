// Products in plain C++: they run everywhere, and every other instruction set is held against them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "plain.hpp"

namespace kvcast {
namespace {

void round(const float* x, int count, const Rounded& to) {
  float most = 0;
  for (int i = 0; i < count; i++) most = std::max(most, std::fabs(x[i]));
  const bool is_zero = most < SMALLEST;
  const float inverse = is_zero ? 0.f : 127.f / most;
  int32_t sum = 0;
  for (int i = 0; i < BLOCK; i++) {
    to.codes[i] = i < count ? static_cast<int8_t>(std::nearbyint(x[i] * inverse)) : 0;
    sum += to.codes[i];
  }
  *to.scales = is_zero ? 0.f : most / 127.f;
  *to.offsets = -128 * sum;
}

// Scales and bias, then codes + 128 as they come.
size_t tile_bytes(int inputs) { return 2 * BLOCK * sizeof(float) + static_cast<size_t>(BLOCK) * inputs; }

void pack(const int8_t* codes, const float* scales, const float* bias, int inputs, uint8_t* tile) {
  std::memcpy(tile, scales, BLOCK * sizeof(float));
  std::memcpy(tile + BLOCK * sizeof(float), bias, BLOCK * sizeof(float));
  uint8_t* to = tile + 2 * BLOCK * sizeof(float);
  for (int i = 0; i < BLOCK * inputs; i++) to[i] = static_cast<uint8_t>(codes[i] + 128);
}

// Sums in the order of the blocks, fused as on all processors that have it: equal bit for bit.
void multiply(const uint8_t* tile, const Rounded& in, int rows, float* out) {
  const float *scales = reinterpret_cast<const float*>(tile), *bias = scales + BLOCK;
  const uint8_t* weights = tile + 2 * BLOCK * sizeof(float);
  for (int m = 0; m < rows; m++) {
    const Rounded row = in.row(m);
    for (int n = 0; n < BLOCK; n++) {
      float total = 0;
      for (int b = 0; b < in.inputs / BLOCK; b++) {
        int32_t sum = row.offsets[b];
        for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) sum += weights[n * in.inputs + i] * row.codes[i];
        total = std::fma(static_cast<float>(sum), row.scales[b], total);
      }
      out[m * BLOCK + n] = std::fma(total, scales[n], bias[n]);
    }
  }
}

}  // namespace

const Products plain_products = {round, tile_bytes, pack, multiply};

}  // namespace kvcast
