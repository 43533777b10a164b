// Alignment in plain C++, written so that compilers make vectors of its inner loops; sums are taken in lanes,
// in the same order whatever the vectors' width.
#include "alignment.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "halves.hpp"
#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int LANES = 16;
constexpr int BESIDE = 3;  // frames on both sides of a median
constexpr float LEAST_EXPONENT = -87;  // e to less than this is no normal number

void read_line(const uint8_t* line, Number number, int head_dim, float* out) {
  switch (number) {
    case Number::F32: std::memcpy(out, line, head_dim * sizeof(float)); break;
    case Number::F16: {
      const uint16_t* halves = reinterpret_cast<const uint16_t*>(line);
      for (int i = 0; i < head_dim; i++) out[i] = from_half(halves[i]);
      break;
    }
    case Number::INT8: {
      float scale;
      std::memcpy(&scale, line + head_dim, sizeof scale);
      for (int i = 0; i < head_dim; i++) out[i] = static_cast<int8_t>(line[i]) * scale;
      break;
    }
  }
}

// e^x for x <= 0, within 2 units in the last place (the polynomial is that of Cephes' expf).
inline float exponential(float x) {
  x = std::max(LEAST_EXPONENT, x);
  const int32_t power = static_cast<int32_t>(x * 1.44269504f - 0.5f);
  const float n = static_cast<float>(power), r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1;
  const int32_t bits = (power + 127) * (1 << 23);
  float factor;
  std::memcpy(&factor, &bits, sizeof factor);
  return y * factor;
}

void softmax(const float* x, int count, float* out) {
  float most = x[0], total = 0;
  for (int i = 1; i < count; i++) most = std::max(most, x[i]);
  for (int i = 0; i < count; i++) out[i] = exponential(x[i] - most);
  float lanes[LANES] = {};
  const int whole = count / LANES * LANES;
  for (int i = 0; i < whole; i += LANES)
    for (int l = 0; l < LANES; l++) lanes[l] += out[i + l];
  for (int i = whole; i < count; i++) lanes[i - whole] += out[i];
  for (float lane : lanes) total += lane;
  for (int i = 0; i < count; i++) out[i] /= total;
}

// x [tokens, count] with a stride, count up to BLOCK: less the column's mean, over its deviation.
void standardise(float* x, size_t stride, int tokens, int count) {
  float means[BLOCK] = {}, factors[BLOCK] = {};
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) means[i] += x[s * stride + i];
  for (int i = 0; i < count; i++) means[i] /= static_cast<float>(tokens);
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) {
      const float d = x[s * stride + i] -= means[i];
      factors[i] += d * d;
    }
  // No token stands out in a frame to which all attend alike.
  for (int i = 0; i < count; i++) {
    const float deviation = std::sqrt(factors[i] / static_cast<float>(tokens));
    factors[i] = deviation == 0 ? 1 : 1 / deviation;
  }
  for (int s = 0; s < tokens; s++)
    for (int i = 0; i < count; i++) x[s * stride + i] *= factors[i];
}

inline void sort(float& a, float& b) {
  const float low = b < a ? b : a, high = b < a ? a : b;
  a = low;
  b = high;
}

// Adds to out[i] the median of x[i .. i + 6] (the network of N. Devillard's "Fast median search").
void add_medians(const float* x, int count, float* out) {
  for (int i = 0; i < count; i++) {
    float a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3], e = x[i + 4], f = x[i + 5], g = x[i + 6];
    sort(a, f), sort(a, d), sort(b, g), sort(c, e), sort(a, b), sort(d, f), sort(c, g);
    sort(c, d), sort(d, g), sort(e, f), sort(b, e), sort(b, d), sort(d, e);
    out[i] += d;
  }
}

}  // namespace

void alignment_scores(Machine& machine, const AlignmentScores& one) {
  const Tiles& tiles = machine.with.products.of(Format::F32);
  const int each = parts(one.positions, BLOCK), d = one.head_dim;
  const size_t line = line_bytes(one.number, d);
  machine.threads.run(one.heads * each, [&](int part) {
    thread_local Space space;
    const int head = part / each, first = part % each * BLOCK, count = std::min(BLOCK, one.positions - first);
    uint8_t* tile = space.of(tiles.bytes(d) + sizeof(float) * BLOCK * d);
    float* keys = reinterpret_cast<float*>(tile + tiles.bytes(d));
    const uint8_t* from = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(one.keys[head]));
    for (int n = 0; n < count; n++) read_line(from + (first + n) * line, one.number, d, keys + n * d);
    Stored stored = {keys};
    stored.count = count;
    stored.inputs = d;
    tiles.pack(stored, tile);
    alignas(64) float sums[MOST_TILE_ROWS * BLOCK];
    for (int s = 0; s < one.tokens; s += tiles.most_rows) {
      const int rows = std::min(tiles.most_rows, one.tokens - s);
      const Operand in = {one.query.data + s * one.query.stride + head * d, one.query.stride, {}};
      tiles.multiply(tile, in, d, rows, sums);
      for (int m = 0; m < rows; m++) {
        float* out = one.out + (static_cast<size_t>(head) * one.tokens + s + m) * one.positions + first;
        for (int n = 0; n < count; n++) out[n] = sums[m * BLOCK + n] * one.scale;
      }
    }
  });
}

void stand_out(Machine& machine, const StandingOut& one) {
  const int rows = one.heads * one.tokens, frames = one.frames;
  const size_t width = frames;
  float* weights = reinterpret_cast<float*>(machine.space.of(rows * width * sizeof(float)));
  for_rows(machine, rows, frames, [&](int row) {
    softmax(one.scores + static_cast<size_t>(row) * one.positions, frames, weights + row * width);
  });
  const int each = parts(frames, BLOCK);
  machine.threads.run(one.heads * each, [&](int part) {
    const int head = part / each, first = part % each * BLOCK;
    float* columns = weights + head * one.tokens * width + first;
    standardise(columns, width, one.tokens, std::min(BLOCK, frames - first));
  });
  for_rows(machine, one.tokens, one.heads * frames, [&](int token) {
    thread_local std::vector<float> mirrored;
    mirrored.resize(frames + 2 * BESIDE);
    float* out = one.out + token * width;
    std::fill(out, out + frames, 0.f);
    for (int head = 0; head < one.heads; head++) {
      const float* from = weights + (static_cast<size_t>(head) * one.tokens + token) * width;
      if (frames <= BESIDE) {  // too few for medians
        for (int i = 0; i < frames; i++) out[i] += from[i];
        continue;
      }
      std::copy(from, from + frames, mirrored.begin() + BESIDE);
      for (int i = 1; i <= BESIDE; i++) {
        mirrored[BESIDE - i] = from[i];
        mirrored[BESIDE + frames - 1 + i] = from[frames - 1 - i];
      }
      add_medians(mirrored.data(), frames, out);
    }
    for (int i = 0; i < frames; i++) out[i] /= static_cast<float>(one.heads);
  });
}

}  // namespace kvcast
