// Ops of audio encoders: rotary embedding, group norm and attention of inputs of different lengths, and scores by distance.
//
// Products with the keys of distances. A query at i and a position at j read distance i - j, so a query's scores are
// neighbours in its products with all distances, and each query's begin one before the last query's.
#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
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

void moments(Machine& machine, const MomentsWords& w) {
  for_rows(machine, w.rows, w.width, [&](int row) {
    const float* const x = w.x.data + row * w.x.stride;
    float* const out = w.out.data + row * w.out.stride;
    double sum = 0, squares = 0;
    for (int i = 0; i < w.width; i++) {
      sum += x[i];
      squares += static_cast<double>(x[i]) * x[i];
    }
    const double mean = sum / w.width, of_squares = squares / w.width;
    out[0] = static_cast<float>(mean);
    out[1] = static_cast<float>(std::sqrt(std::max(0.0, of_squares - mean * mean)));
    out[2] = static_cast<float>(std::sqrt(of_squares));
  });
}

void softmax(Machine& machine, const SoftmaxWords& w) {
  for_rows(machine, w.rows, w.width, [&](int row) {
    machine.with.scores.softmax(w.x.data + row * w.x.stride, w.width, w.out.data + row * w.out.stride);
  });
}

namespace {

constexpr int QUERIES = 48;  // that read nearly the same distances

// Distances from the farthest behind to the farthest ahead, in tiles of BLOCK, of each head.
class Distances {
 public:
  Distances(Machine& machine, const RelativeScores& of)
      : of_(of), with_(machine.with.gemm.of(Format::F32)), tiles_(parts(2 * of.positions - 1, BLOCK)),
        bytes_(with_.bytes(of.head_dim)), packed_(machine.space.of(of.heads * tiles_ * bytes_)) {
    machine.threads.run(of.heads * tiles_, [&](int unit) { pack(unit / tiles_, unit % tiles_); });
  }

  // The scores of queries first .. last of a head [., positions].
  void score(const float* query, int head, int first, int last, float* out) const {
    const int t = of_.positions, first_tile = (t - last) / BLOCK, last_tile = (2 * t - 2 - first) / BLOCK;
    alignas(64) float sums[MOST_TILE_ROWS * BLOCK];
    for (int tile = first_tile; tile <= last_tile; tile++)
      for (int m = first; m < last; m += with_.most_rows) {
        const int rows = std::min(with_.most_rows, last - m);
        Operand in = {query + (m - first) * of_.query.stride, of_.query.stride, {}};
        in.again = m > first;
        with_.multiply(packed_ + (static_cast<size_t>(head) * tiles_ + tile) * bytes_, in, of_.head_dim, rows, sums);
        for (int i = 0; i < rows; i++) {
          const int begin = tile * BLOCK - (t - 1 - (m + i));  // the position that the tile's first distance is of
          float* const row = out + static_cast<size_t>(m + i - first) * t;
          for (int c = std::max(0, -begin); c < std::min(BLOCK, t - begin); c++)
            row[begin + c] = sums[i * BLOCK + c] * of_.scale;
        }
      }
  }

 private:
  void pack(int head, int tile) const {
    thread_local std::vector<float> rows;
    const size_t d = of_.head_dim;
    rows.resize(BLOCK * d);
    Stored stored = {rows.data()};
    stored.count = std::min(BLOCK, 2 * of_.positions - 1 - tile * BLOCK);
    stored.inputs = of_.head_dim;
    for (int n = 0; n < stored.count; n++) {
      const int distance = of_.positions - 1 - (tile * BLOCK + n);
      const size_t line = distance >= 0 ? distance : of_.positions - distance;
      std::memcpy(rows.data() + n * d, of_.key.data + line * of_.key.stride + head * d, d * sizeof(float));
    }
    with_.pack(stored, packed_ + (static_cast<size_t>(head) * tiles_ + tile) * bytes_);
  }

  const RelativeScores& of_;
  const Tiles& with_;
  const int tiles_;
  const size_t bytes_;
  uint8_t* const packed_;
};

}  // namespace

void relative_scores(Machine& machine, const RelativeScores& of) {
  if (of.inputs == 0 || of.positions == 0) return;
  const Distances distances(machine, of);
  const int runs = parts(of.positions, QUERIES);
  machine.threads.run(of.inputs * of.heads * runs, [&](int unit) {
    const int group = unit / runs, head = group % of.heads;
    const int first = unit % runs * QUERIES, last = std::min(first + QUERIES, of.positions);
    const size_t input = group / of.heads, positions = of.positions;
    const float* query = of.query.data + (input * positions + first) * of.query.stride + static_cast<size_t>(head) * of.head_dim;
    distances.score(query, head, first, last, of.out + (group * positions + first) * positions);
  });
}

}  // namespace kvcast
