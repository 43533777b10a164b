// Attention over a part of positions in plain C++.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "halves.hpp"
#include "plain/plain.hpp"

namespace kvcast {
namespace {

constexpr int LANES = 16;  // sums of their own, so that a compiler can take vectors

void rotate(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[half + i];
    out[i] = a * cosines[i] - b * sines[i];
    out[half + i] = b * cosines[i] + a * sines[i];
  }
}

void to_codes(const float* x, int count, int8_t* to) {
  float most = 0;
  for (int i = 0; i < count; i++) most = std::fabs(x[i]) > most || x[i] != x[i] ? std::fabs(x[i]) : most;
  const bool is_zero = most < SMALLEST;
  const float scale = is_zero ? 0.f : most / 127.f, inverse = is_zero ? 0.f : 127.f / most;
  for (int i = 0; i < count; i++) {
    const float code = std::nearbyint(x[i] * inverse);
    to[i] = std::fabs(code) <= 127 ? static_cast<int8_t>(code) : 0;  // NaN shows in the scale
  }
  std::memcpy(to + count, &scale, sizeof scale);
}

void store(const float* x, int count, Number number, void* to) {
  switch (number) {
    case Number::F32: std::memcpy(to, x, count * sizeof(float)); break;
    case Number::F16: to_halves(x, count, static_cast<uint16_t*>(to)); break;
    case Number::INT8: to_codes(x, count, static_cast<int8_t*>(to)); break;
  }
}

// Elements first .. first + count of a line.
void load(const void* line, Number number, int head_dim, int first, int count, float* to) {
  float scale = 1;
  if (number == Number::INT8) std::memcpy(&scale, static_cast<const int8_t*>(line) + head_dim, sizeof scale);
  for (int i = 0; i < count; i++) switch (number) {
      case Number::F32: to[i] = static_cast<const float*>(line)[first + i]; break;
      case Number::F16: to[i] = from_half(static_cast<const uint16_t*>(line)[first + i]); break;
      case Number::INT8: to[i] = static_cast<const int8_t*>(line)[first + i] * scale; break;
    }
}

// Calls work(position in the part, line [at most LANES values], their first index, their count).
template <class Work>
void each(const Part& part, Number number, const void* const lines[2], Work&& work) {
  float numbers[LANES];
  int position = part.begin;
  for (int run = 0; run < 2; run++)
    for (int t = 0; t < part.counts[run]; t++, position++)
      for (int d = 0; d < part.head_dim; d += LANES) {
        const int count = std::min(LANES, part.head_dim - d);
        load(static_cast<const uint8_t*>(lines[run]) + t * line_bytes(number, part.head_dim), number, part.head_dim,
             d, count, numbers);
        work(position, numbers, d, count);
      }
}

void score(const Part& part, float* scores) {
  const int width = padded(part.head_dim);
  float lanes[MOST_QUERIES][LANES];
  each(part, part.key_number, part.keys, [&](int t, const float* key, int d, int count) {
    for (int m = 0; m < part.queries; m++) {
      if (d == 0) std::fill(lanes[m], lanes[m] + LANES, 0.f);
      for (int i = 0; i < count; i++) lanes[m][i] += part.query[m * width + d + i] * key[i];
      if (d + count < part.head_dim) continue;
      float sum = 0;
      for (int i = 0; i < LANES; i++) sum += lanes[m][i];
      scores[m * SCORES + t] = sum;
    }
  });
}

// Scores first .. last become shares.
Softmax share(float* scores, int first, int last, const float* bias, float softcap) {
  float most = -INFINITY, total = 0;
  for (int t = first; t < last; t++) {
    if (softcap != 0) scores[t] = softcap * std::tanh(scores[t] / softcap);
    if (bias != nullptr) scores[t] += bias[t];
    most = scores[t] > most || scores[t] != scores[t] ? scores[t] : most;
  }
  if (most == -INFINITY) {
    std::fill(scores + first, scores + std::max(first, last), 0.f);
    return {most, 0};
  }
  for (int t = first; t < last; t++) total += scores[t] = std::exp(scores[t] - most);
  return {most, total};
}

void attend(const Part& part, float* scores, Softmax* softmax, float* mixed) {
  const int width = padded(part.head_dim);
  score(part, scores);
  for (int m = 0; m < part.queries; m++)
    softmax[m] = share(scores + m * SCORES, part.first[m], part.last[m], part.bias ? part.bias[m] : nullptr,
                       part.softcap);
  std::fill(mixed, mixed + part.queries * width, 0.f);
  each(part, part.value_number, part.values, [&](int t, const float* value, int d, int count) {
    for (int m = 0; m < part.queries; m++) {
      if (t < part.first[m] || t >= part.last[m]) continue;
      const float factor = scores[m * SCORES + t];
      for (int i = 0; i < count; i++) mixed[m * width + d + i] += factor * value[i];
    }
  });
}

}  // namespace

const Attention plain_attention = {rotate, store, attend};

}  // namespace kvcast
