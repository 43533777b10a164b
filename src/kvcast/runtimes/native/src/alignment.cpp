// Loops over heads, tokens and the vocabulary, the same for all instruction sets.
#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int TILES_AT_ONCE = 8;
constexpr int BESIDE = 3;  // frames on both sides of a median

}  // namespace

void alignment_scores(Machine& machine, const AlignmentScores& of) {
  const Tiles& tiles = machine.with.gemm.of(Format::F32);
  const int each = parts(of.positions, BLOCK), d = of.head_dim;
  const size_t line = line_bytes(of.number, d);
  machine.threads.run(of.heads * each, [&](int part) {
    thread_local Space space;
    const int head = part / each, first = part % each * BLOCK, count = std::min(BLOCK, of.positions - first);
    uint8_t* tile = space.of(tiles.bytes(d) + sizeof(float) * BLOCK * d);
    float* keys = reinterpret_cast<float*>(tile + tiles.bytes(d));
    const uint8_t* from = reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(of.keys[head]));
    for (int n = 0; n < count; n++) machine.with.scores.read(from + (first + n) * line, of.number, d, keys + n * d);
    Stored stored = {keys};
    stored.count = count;
    stored.inputs = d;
    tiles.pack(stored, tile);
    alignas(64) float sums[MOST_TILE_ROWS * BLOCK];
    for (int s = 0; s < of.tokens; s += tiles.most_rows) {
      const int rows = std::min(tiles.most_rows, of.tokens - s);
      const Operand in = {of.query.data + s * of.query.stride + head * d, of.query.stride, {}};
      tiles.multiply(tile, in, d, rows, sums);
      for (int m = 0; m < rows; m++) {
        float* out = of.out + (static_cast<size_t>(head) * of.tokens + s + m) * of.positions + first;
        for (int n = 0; n < count; n++) out[n] = sums[m * BLOCK + n] * of.scale;
      }
    }
  });
}

void attention_by_token(Machine& machine, const AttentionByToken& of) {
  const int rows = of.heads * of.tokens, frames = of.frames;
  const size_t width = frames;
  float* weights = reinterpret_cast<float*>(machine.space.of(rows * width * sizeof(float)));
  for_rows(machine, rows, frames, [&](int row) {
    machine.with.scores.softmax(of.scores + static_cast<size_t>(row) * of.positions, frames, weights + row * width);
  });
  const int each = parts(frames, BLOCK);
  machine.threads.run(of.heads * each, [&](int part) {
    const int head = part / each, first = part % each * BLOCK;
    float* columns = weights + head * of.tokens * width + first;
    machine.with.scores.standardise(columns, width, of.tokens, std::min(BLOCK, frames - first));
  });
  for_rows(machine, of.tokens, of.heads * frames, [&](int token) {
    thread_local std::vector<float> mirrored;
    mirrored.resize(frames + 2 * BESIDE);
    float* out = of.out + token * width;
    std::fill(out, out + frames, 0.f);
    for (int head = 0; head < of.heads; head++) {
      const float* from = weights + (static_cast<size_t>(head) * of.tokens + token) * width;
      if (frames <= BESIDE) {  // too few for medians
        for (int i = 0; i < frames; i++) out[i] += from[i];
        continue;
      }
      std::copy(from, from + frames, mirrored.begin() + BESIDE);
      for (int i = 1; i <= BESIDE; i++) {
        mirrored[BESIDE - i] = from[i];
        mirrored[BESIDE + frames - 1 + i] = from[frames - 1 - i];
      }
      machine.with.scores.add_medians(mirrored.data(), frames, out);
    }
    for (int i = 0; i < frames; i++) out[i] /= static_cast<float>(of.heads);
  });
}

// Rows in sequence on one thread: each frame of a row depends on the frame before.
void dtw(Machine& machine, const Dtw& of) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const size_t frames = of.frames;
  // Of the best path to each frame of a row: twice the frame at which it entered the row, and 1 if with a step of both.
  int32_t* entries = reinterpret_cast<int32_t*>(machine.space.of(of.rows * frames * sizeof(int32_t)));
  std::vector<double> before(frames + 1, infinite), costs(frames + 1, infinite);
  before[0] = 0;
  for (int row = 0; row < of.rows; row++) {
    const float* weights = of.weights + row * frames;
    int32_t *entry = entries + row * frames, entered = 0;
    double sum = 0, best = infinite;
    for (size_t t = 0; t < frames; t++) {
      const double both = before[t], alone = before[t + 1], least = both < alone ? both : alone;
      const double cost = both == alone ? infinite : least + sum;
      const int32_t here = static_cast<int32_t>(2 * t) + (both < alone);
      entered = cost < best ? here : entered;
      best = cost < best ? cost : best;
      sum += weights[t];
      entry[t] = entered;
      costs[t + 1] = best - sum;
    }
    std::swap(before, costs);
    before[0] = infinite;
  }
  std::fill(of.out, of.out + of.rows, 0);
  int frame = of.frames - 1;
  for (int row = of.rows - 1; row >= 0 && frame >= 0; row--) {
    const int32_t entry = entries[row * frames + frame];
    of.out[row] = entry / 2;
    frame = entry / 2 - entry % 2;
  }
}

void token_probabilities(Machine& machine, const TokenProbabilities& of) {
  const Tiles& with = machine.with.gemm.of(of.matrix.format);
  const size_t bytes = with.bytes(of.matrix.inputs);
  const int tiles = parts(of.matrix.outputs, BLOCK), rows = of.rows;
  // Merged in the order of tiles, for any division among threads.
  std::vector<Softmax> softmaxes(static_cast<size_t>(tiles) * rows);
  std::vector<float> chosen(rows);
  machine.threads.run(parts(tiles, TILES_AT_ONCE), [&](int part) {
    alignas(64) float sums[MOST_TILE_ROWS * BLOCK];
    for (int tile = part * TILES_AT_ONCE; tile < std::min((part + 1) * TILES_AT_ONCE, tiles); tile++) {
      const int first = tile * BLOCK, count = std::min(BLOCK, of.matrix.outputs - first);
      for (int m = 0; m < rows; m += with.most_rows) {
        const int here = std::min(with.most_rows, rows - m);
        with.multiply(of.matrix.tiles + tile * bytes, of.in.row(m), of.matrix.inputs, here, sums);
        for (int i = 0; i < here; i++) {
          const float* row = sums + i * BLOCK;
          softmaxes[static_cast<size_t>(m + i) * tiles + tile] = machine.with.scores.exponentials(row, of.among + first, count);
          const int64_t token = of.tokens[m + i] - first;
          if (0 <= token && token < count) chosen[m + i] = row[token];
        }
      }
    }
  });
  for (int m = 0; m < rows; m++) {
    const Softmax* row = softmaxes.data() + static_cast<size_t>(m) * tiles;
    float most = row[0].most;
    for (int tile = 1; tile < tiles; tile++) most = std::max(most, row[tile].most);
    double total = 0;
    for (int tile = 0; tile < tiles; tile++)
      if (row[tile].total > 0) total += row[tile].total * std::exp(row[tile].most - most);
    of.out[m] = static_cast<float>(std::exp(chosen[m] - most) / total);
  }
}

}  // namespace kvcast
