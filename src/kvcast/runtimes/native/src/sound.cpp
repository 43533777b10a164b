#include "sound.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int LANES = 8;  // sums that do not wait for each other

float dot(const float* a, const float* b, int count) {
  float sums[LANES] = {};
  int i = 0;
  for (; i + LANES <= count; i += LANES)
    for (int lane = 0; lane < LANES; lane++) sums[lane] += a[i + lane] * b[i + lane];
  float sum = 0;
  for (; i < count; i++) sum += a[i] * b[i];
  for (const float part : sums) sum += part;
  return sum;
}

// The positions first .. last that a query sees.
struct Window {
  int first, last;
};

void mix(const WindowAttention& w, int input, int query, Window seen, std::vector<float>& shares) {
  const size_t lines = static_cast<size_t>(input) * w.positions;
  const float* const queries = w.query.data + (static_cast<size_t>(input) * w.queries + query) * w.query.stride;
  float* const results = w.out.data + (static_cast<size_t>(input) * w.queries + query) * w.out.stride;
  shares.resize(seen.last - seen.first + 1);
  for (int head = 0; head < w.heads; head++) {
    const int channel = head * w.head_dim;
    float most = -INFINITY, sum = 0;
    for (int t = seen.first; t <= seen.last; t++) {
      const float* const key = w.key.data + (lines + t) * w.key.stride + channel;
      shares[t - seen.first] = dot(queries + channel, key, w.head_dim) * w.scale;
      most = std::max(most, shares[t - seen.first]);
    }
    for (float& share : shares) sum += share = std::exp(share - most);
    float* const out = results + channel;
    std::fill(out, out + w.head_dim, 0.0f);
    for (int t = seen.first; t <= seen.last; t++) {
      const float* const value = w.value.data + (lines + t) * w.value.stride + channel;
      const float share = shares[t - seen.first] / sum;
      for (int i = 0; i < w.head_dim; i++) out[i] += share * value[i];
    }
  }
}

}  // namespace

void rotate(Machine& machine, const Rotation& w) {
  const int half = w.head_dim / 2;
  for_rows(machine, w.inputs * w.positions, w.heads * w.head_dim, [&](int line) {
    const size_t angles = static_cast<size_t>(line % w.positions) * half;
    for (int head = 0; head < w.heads; head++)
      machine.with.attention.rotate(w.x.data + line * w.x.stride + head * w.head_dim, w.cosines + angles,
                                    w.sines + angles, half, w.out.data + line * w.out.stride + head * w.head_dim);
  });
}

void group_norm(Machine& machine, const GroupNorm& w) {
  const int lines = w.inputs * w.positions;
  double* const sums = reinterpret_cast<double*>(machine.space.of(lines * 2 * sizeof(double)));
  for_rows(machine, lines, w.width, [&](int line) {
    const float* const x = w.x.data + line * w.x.stride;
    double sum = 0, squares = 0;
    for (int i = 0; i < w.width; i++) {
      sum += x[i];
      squares += static_cast<double>(x[i]) * x[i];
    }
    sums[2 * line] = sum;
    sums[2 * line + 1] = squares;
  });
  std::vector<float> means(w.inputs), factors(w.inputs);
  for (int input = 0; input < w.inputs; input++) {
    const int valid = std::clamp(w.lengths[input], 1, w.positions);
    const double count = static_cast<double>(valid) * w.width;
    double sum = 0, squares = 0;
    for (int line = input * w.positions; line < input * w.positions + valid; line++) {
      sum += sums[2 * line];
      squares += sums[2 * line + 1];
    }
    const double mean = sum / count, variance = std::max(0.0, squares / count - mean * mean);
    means[input] = static_cast<float>(mean);
    factors[input] = static_cast<float>(1 / std::sqrt(variance + w.epsilon));
  }
  for_rows(machine, lines, w.width, [&](int line) {
    const float mean = means[line / w.positions], factor = factors[line / w.positions];
    const float* const x = w.x.data + line * w.x.stride;
    float* const out = w.out.data + line * w.out.stride;
    for (int i = 0; i < w.width; i++) out[i] = (x[i] - mean) * factor * w.gain[i] + w.bias[i];
  });
}

void window_attention(Machine& machine, const WindowAttention& w) {
  for_rows(machine, w.inputs * w.queries, w.heads * w.head_dim * (w.before + 1 + w.after), [&](int line) {
    thread_local std::vector<float> shares;
    const int input = line / w.queries, query = line % w.queries, own = w.first + query;
    // A position past the end sees its own: it must see something.
    const int valid = w.lengths == nullptr ? w.positions : std::clamp(w.lengths[input], 1, w.positions);
    const int end = std::max(own, valid - 1);
    mix(w, input, query, {std::max(0, own - w.before), std::min(own + w.after, end)}, shares);
  });
}

void softmax(Machine& machine, const SoftmaxWords& w) {
  for_rows(machine, w.rows, w.width, [&](int row) {
    machine.with.scores.softmax(w.x.data + row * w.x.stride, w.width, w.out.data + row * w.out.stride);
  });
}

}  // namespace kvcast
