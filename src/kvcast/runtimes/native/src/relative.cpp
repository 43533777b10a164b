// Products with the keys of distances. A query at i and a position at j read distance i - j, so a query's scores are
// neighbours in its products with all distances, and each query's begin one before the last query's.
#include "relative.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kvcast {
namespace {

constexpr int QUERIES = 48;  // that read nearly the same distances

// Distances from the farthest behind to the farthest ahead, in tiles of BLOCK, of each head.
class Distances {
 public:
  Distances(Machine& machine, const RelativeScores& of)
      : of_(of), with_(machine.with.products.of(Format::F32)), tiles_(parts(2 * of.positions - 1, BLOCK)),
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
