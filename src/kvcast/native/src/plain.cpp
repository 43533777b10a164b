// The kernels in plain C++: they run everywhere, and every other instruction set is held against them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.hpp"

namespace kvcast {
namespace {

bool run_here() { return true; }

void round(const float* x, const Rounded& to) {
  float most = 0;
  for (int i = 0; i < BLOCK; i++) most = std::max(most, std::fabs(x[i]));
  const bool is_zero = most < SMALLEST;
  const float inverse = is_zero ? 0.f : 127.f / most;
  int32_t sum = 0;
  for (int i = 0; i < BLOCK; i++) {
    to.codes[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
    sum += to.codes[i];
  }
  *to.scales = is_zero ? 0.f : most / 127.f;
  *to.offsets = -128 * sum;
}

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  double sum = 0, squares = 0;
  for (int i = 0; i < width; i++) sum += x[i];
  const double mean = sum / width;
  for (int i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1 / std::sqrt(squares / width + epsilon);
  for (int i = 0; i < width; i++) out[i] = static_cast<float>((x[i] - mean) * factor * gain[i] + bias[i]);
}

void gelu(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f));
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

// Queries, keys and values, each float [t, d].
size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(float) * positions * head_dim; }

void pack_head(const float* query, const float* key, const float* value, size_t stride, int positions, int head_dim,
               float scale, int first, uint8_t* head) {
  float* to = reinterpret_cast<float*>(head);
  const size_t part = static_cast<size_t>(positions) * head_dim;
  for (int t = first; t < std::min(first + BLOCK, positions); t++)
    for (int d = 0; d < head_dim; d++) {
      const size_t from = t * stride + d, at = static_cast<size_t>(t) * head_dim + d;
      to[at] = query[from] * scale;
      to[part + at] = key[from];
      to[2 * part + at] = value[from];
    }
}

// One pass, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).
void attend(const uint8_t* head, int positions, int head_dim, int first, int last, float* out, size_t stride) {
  const size_t part = static_cast<size_t>(positions) * head_dim;
  const float* query = reinterpret_cast<const float*>(head);
  const float *key = query + part, *value = key + part;
  for (int s = first; s < last; s++) {
    float* mixed = out + s * stride;
    float most = -INFINITY, total = 0;
    std::fill(mixed, mixed + head_dim, 0.f);
    for (int t = 0; t < positions; t++) {
      float score = 0;
      for (int d = 0; d < head_dim; d++) score += query[s * head_dim + d] * key[t * head_dim + d];
      const float next = std::max(most, score), kept = std::exp(most - next), share = std::exp(score - next);
      for (int d = 0; d < head_dim; d++) mixed[d] = mixed[d] * kept + share * value[t * head_dim + d];
      total = total * kept + share;
      most = next;
    }
    for (int d = 0; d < head_dim; d++) mixed[d] /= total;
  }
}

}  // namespace

const Instructions plain = {"plain",    run_here, round,      layer_norm, gelu,  tile_bytes,
                            pack,       multiply, head_bytes, pack_head,  attend};

}  // namespace kvcast
