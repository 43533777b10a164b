// Top-k sparse attention: the indexer of a layer scores all positions, and its queries read those of the top k.
//
// Keys are multiplied as a matrix of a GEMM, a tile of positions at a time, packed when they are read.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attending.hpp"
#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int QUERIES_AT_ONCE = 16;  // new positions whose scores are held together

// Queries of an index, times nothing, and their keys as lines of the cache. The first `rotated` channels turn.
void turn(const PositionSelection& of, const Attention& with, const float* x, int position, float* to) {
  rotate(with, x, of.rotated, of.cosines, of.sines, position, to);
  std::memcpy(to + of.rotated, x + of.rotated, (of.dim - of.rotated) * sizeof(float));
}

int length_of(const PositionSelection& of, int line) { return of.lengths[line / of.new_positions]; }
int position_of(const PositionSelection& of, int line) { return length_of(of, line) + line % of.new_positions; }

void write_keys(Machine& machine, const PositionSelection& of) {
  for_rows(machine, of.rows * of.new_positions, of.dim, [&](int line) {
    static thread_local Space space;
    float* const turned = reinterpret_cast<float*>(space.of(of.dim * sizeof(float)));
    const int position = position_of(of, line);
    turn(of, machine.with.attention, of.key.data + line * of.key.stride, position, turned);
    const HeadLines to = head_of(of.cache, line / of.new_positions, 0);
    machine.with.attention.store(turned, of.dim, to.number, const_cast<void*>(to.slot(position, of.dim)));
  });
}

// The queries of some new positions, as a GEMM's rows: of each, all heads.
class Queries {
 public:
  Queries(Machine& machine, const PositionSelection& of, int first, int count)
      : of_(of), first_(first), is_float_(of.cache.number != Number::INT8) {
    static thread_local Space space;
    const int rows = count * of.heads;
    const size_t floats = (static_cast<size_t>(rows) * of.dim * sizeof(float) + 63) / 64 * 64;
    uint8_t* const data = space.of(floats + (is_float_ ? 0 : rounded_bytes(rows, of.dim)));
    turned_ = reinterpret_cast<float*>(data);
    for (int i = 0; i < rows; i++) {
      const int line = first + i / of.heads;
      const float* const x = of.query.data + line * of.query.stride + static_cast<size_t>(i % of.heads) * of.dim;
      turn(of, machine.with.attention, x, position_of(of, line), turned_ + static_cast<size_t>(i) * of.dim);
    }
    if (is_float_) return;
    codes_ = rounded(data + floats, rows, of.dim);
    round_rows(machine, turned_, of.dim, rows, of.dim, codes_);
  }

  Format format() const { return is_float_ ? Format::F32 : Format::INT8; }
  Operand rows(int query) const {
    const size_t row = static_cast<size_t>(query) * of_.heads;
    return is_float_ ? Operand{turned_ + row * of_.dim, static_cast<size_t>(of_.dim), {}} : Operand{nullptr, 0, codes_.row(row)};
  }
  int line(int query) const { return first_ + query; }

 private:
  const PositionSelection& of_;
  int first_;
  bool is_float_;
  float* turned_;
  Rounded codes_{};
};

// Keys of BLOCK positions from `first` on as a tile; those past the last are zeros.
void pack_keys(const Instructions& with, const PositionSelection& of, const HeadLines& keys, int first, int count,
               const Tiles& tiles, uint8_t* tile) {
  static thread_local Space space;
  float* const floats = reinterpret_cast<float*>(space.of((static_cast<size_t>(of.dim) + 1) * BLOCK * sizeof(float)));
  Stored stored{};
  stored.codes = floats;
  stored.count = count;
  stored.inputs = of.dim;
  if (keys.number == Number::INT8) {
    int8_t* const codes = reinterpret_cast<int8_t*>(floats + BLOCK);
    for (int i = 0; i < count; i++) {
      const uint8_t* const line = bytes(keys.slot(first + i, of.dim));
      std::memcpy(codes + static_cast<size_t>(i) * of.dim, line, of.dim);
      std::memcpy(floats + i, line + of.dim, sizeof(float));
    }
    stored.codes = codes;
    stored.scales = floats;
  } else {
    for (int i = 0; i < count; i++)
      with.scores.read(keys.slot(first + i, of.dim), keys.number, of.dim, floats + static_cast<size_t>(i) * of.dim);
  }
  tiles.pack(stored, tile);
}

// Of each of some queries, the scores of a tile's positions: the heads' products, no less than 0, weighed.
void score_tile(const Instructions& with, const PositionSelection& of, const Queries& queries, int count, int tile,
                int held, float* scores, size_t stride) {
  static thread_local Space space;
  const Tiles& tiles = with.gemm.of(queries.format());
  uint8_t* const packed = space.of(tiles.bytes(of.dim));
  const int first = tile * BLOCK, positions = std::min(BLOCK, held - first);
  pack_keys(with, of, head_of(of.cache, queries.line(0) / of.new_positions, 0), first, positions, tiles, packed);
  alignas(64) float products[MOST_TILE_ROWS * BLOCK];
  for (int q = 0; q < count; q++) {
    float* const to = scores + q * stride + first;
    std::fill_n(to, BLOCK, 0.f);
    const float* const weights = of.weights.data + queries.line(q) * of.weights.stride;
    for (int head = 0; head < of.heads; head += tiles.most_rows) {
      const int rows = std::min(tiles.most_rows, of.heads - head);
      Operand operand = queries.rows(q).row(head);
      operand.again = head > 0 || q > 0;
      tiles.multiply(packed, operand, of.dim, rows, products);
      for (int h = 0; h < rows; h++)
        for (int i = 0; i < BLOCK; i++) to[i] += weights[head + h] * std::max(products[h * BLOCK + i], 0.f);
    }
  }
}

// Orders like a score, the highest first; NaN counts as the lowest.
uint32_t rank_of(float score) {
  if (score != score) return 0xffffffffu;
  uint32_t bits;
  score += 0.f;  // -0 is 0
  std::memcpy(&bits, &score, sizeof bits);
  return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

// The `count` highest of `seen` scores in the order of their positions; of equal ones the first positions.
void choose(const float* scores, int seen, int count, int32_t* chosen) {
  if (seen <= count) {
    for (int i = 0; i < count; i++) chosen[i] = i < seen ? i : -1;
    return;
  }
  static thread_local Space space;
  uint64_t* const keys = reinterpret_cast<uint64_t*>(space.of(seen * sizeof(uint64_t)));
  for (int i = 0; i < seen; i++) keys[i] = static_cast<uint64_t>(rank_of(scores[i])) << 32 | static_cast<uint32_t>(i);
  std::nth_element(keys, keys + count, keys + seen);
  for (int i = 0; i < count; i++) chosen[i] = static_cast<int32_t>(keys[i] & 0xffffffffu);
  std::sort(chosen, chosen + count);
}

}  // namespace

void select_positions(Machine& machine, const PositionSelection& of) {
  require_room(of.rows, of.lengths, of.new_positions, of.capacity);
  write_keys(machine, of);
  static thread_local Space space;
  for (int row = 0; row < of.rows; row++)
    for (int first = 0; first < of.new_positions; first += QUERIES_AT_ONCE) {
      const int count = std::min(QUERIES_AT_ONCE, of.new_positions - first), line = row * of.new_positions + first;
      const int held = of.lengths[row] + first + count, tiles = parts(held, BLOCK);
      const size_t stride = static_cast<size_t>(tiles) * BLOCK;
      float* const scores = reinterpret_cast<float*>(space.of(count * stride * sizeof(float)));
      if (held > of.count) {
        const Queries queries(machine, of, line, count);
        machine.threads.run(tiles, [&](int tile) { score_tile(machine.with, of, queries, count, tile, held, scores, stride); });
      }
      machine.threads.run(count, [&](int q) {
        const int seen = position_of(of, line + q) + 1;
        choose(scores + q * stride, seen, of.count, of.out + static_cast<size_t>(line + q) * of.count);
      });
    }
}

}  // namespace kvcast
