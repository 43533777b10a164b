// Attention of tiles of queries over parts of positions: what caches of every kind, and attention without one, share.
//
// Work is cut into units: a tile of queries that share keys and values, and a run of parts of positions. Parts
// begin at multiples of PART, whatever is new and wherever it lies, and a query's are merged in their order. So
// a query's result depends on the positions that it sees and on nothing else: not on the cut, the other
// queries, or the capacity of a ring.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

#include "program.hpp"

namespace kvcast {

constexpr int UNITS_A_THREAD = 4;
constexpr int WRITTEN_AT_ONCE = 64;
constexpr int LEAST_PROMPT_QUERIES = 2 * PROMPT_LANES;  // of a tile
constexpr int PROMPT_NUMBERS = 64 * PROMPT_QUERIES;    // of a tile's results, which stay in the second cache

// The bytes of a cache's unit: its strides count these.
inline size_t size_of(Number number) { return line_bytes(number, 1) - line_bytes(number, 0); }

inline const uint8_t* bytes(const void* data) { return static_cast<const uint8_t*>(data); }

struct Range {
  int first, last;
  int count() const { return std::max(0, last - first); }
};

// One head's keys or values: position p is in slot p % capacity.
struct HeadLines {
  const void* data;
  Number number;

  const void* slot(int slot, int head_dim) const {
    return bytes(data) + slot * line_bytes(number, head_dim);
  }
};

inline HeadLines head_of(const Heads& heads, int n, int head) {
  const size_t first = n * heads.stride + head * heads.head_stride;
  return {bytes(heads.data) + first * size_of(heads.number), heads.number};
}

// Throws std::out_of_range unless the new positions of all rows lie within their cache.
inline void require_room(int rows, const int32_t* lengths, int new_positions, int capacity) {
  for (int row = 0; row < rows; row++)
    if (lengths[row] < 0 || lengths[row] > capacity - new_positions)
      throw std::out_of_range("a position is past its cache");
}

// Queries that share keys and values, a group of them for each head of keys of each row.
struct Source {
  int groups, queries, head_dim, capacity;
  int out_dim = 0;  // of a result, the first of `head_dim`; 0: all

  int results() const { return out_dim ? out_dim : head_dim; }
  virtual HeadLines keys(int group) const = 0;
  virtual HeadLines values(int group) const = 0;
  virtual Range sees(int group, int query) const = 0;
  virtual void pack(int group, int query, float* to) const = 0;           // times the scale
  virtual const float* bias(int group, int query) const = 0;              // of position 0; null: none
  virtual float* out(int group, int query) const = 0;
  virtual void write(int group, const Range& positions, float* space) const {}  // the new ones among them
  virtual Range written(int group) const { return {0, 0}; }               // the new positions
  // Positions of another cache, which every query sees in the same softmax.
  virtual int beside(int group) const { return 0; }
  virtual HeadLines beside_keys(int group) const { return keys(group); }
  virtual HeadLines beside_values(int group) const { return values(group); }
  virtual bool in_order() const { return true; }  // whether later queries see no earlier positions
  virtual float softcap() const { return 0; }
  virtual float sink(int group, int query) const { return -INFINITY; }    // a logit whose share gives nothing
  virtual const PromptAttention* prompt_attention() const { return nullptr; }  // null: `Attention`
};

inline const float* bias_of(const Bias& bias, size_t n, size_t head, size_t query) {
  if (bias.data == nullptr) return nullptr;
  return bias.data + n * bias.stride + head * bias.head_stride + query * bias.query_stride;
}

inline void scaled(const float* x, int count, float scale, float* to) {
  for (int i = 0; i < count; i++) to[i] = x[i] * scale;
  std::fill(to + count, to + padded(count), 0.f);
}

// A thread's working space for a tile of queries.
struct Tile {
  Tile(int queries, int head_dim) {
    static thread_local Space space;
    const size_t width = padded(head_dim), each = queries * width, worked_in = attention_space(queries, head_dim);
    scores = reinterpret_cast<float*>(space.of((worked_in + 3 * each + width) * sizeof(float)));
    query = scores + worked_in;
    part = query + each;
    mixed = part + each;
    line = mixed + each;
  }

  float *scores, *query, *part, *mixed, *line;
};

// The softmax over `sum`'s positions and then `part`'s.
inline void merge(Softmax& sum, float* mixed, const Softmax& part, const float* part_mixed, int head_dim) {
  if (part.total == 0) return;
  if (sum.total == 0) {
    sum = part;
    std::memcpy(mixed, part_mixed, head_dim * sizeof(float));
    return;
  }
  const float most = part.most > sum.most || part.most != part.most ? part.most : sum.most;
  const float kept = std::exp(sum.most - most), factor = std::exp(part.most - most);
  for (int i = 0; i < head_dim; i++) mixed[i] = mixed[i] * kept + part_mixed[i] * factor;
  sum = {most, sum.total * kept + part.total * factor};
}

// A query that sees nothing gets zeros.
inline void finish(const Softmax& sum, const float* mixed, int count, float sink, float* out) {
  if (sum.total == 0) {
    std::fill(out, out + count, 0.f);
    return;
  }
  const float most = std::max(sum.most, sink), kept = std::exp(sum.most - most);
  const float factor = kept / (sum.total * kept + std::exp(sink - most));  // a NaN in a score propagates to the result
  for (int i = 0; i < count; i++) out[i] = mixed[i] * factor;
}

class Attending {
 public:
  Attending(Machine& machine, const Source& source)
      : machine_(machine), with_(machine.with.attention), source_(source), prompt_(source.prompt_attention()) {}

  void run() {
    if (prompt_ != nullptr) return run_prompt();
    const int d = source_.head_dim;
    const int wanted = machine_.threads.count() == 1 ? 1 : UNITS_A_THREAD * machine_.threads.count();
    // Tiles are as large as leaves enough of them for all threads.
    const int fitting = source_.queries / parts(wanted, source_.groups) / MOST_QUERIES * MOST_QUERIES;
    at_once_ = std::clamp(fitting, MOST_QUERIES, with_.most_queries);
    tiles_ = parts(source_.queries, at_once_);
    runs_ = std::min(most_parts(), parts(wanted, source_.groups * tiles_));
    if (tiles_ > 1) write();
    if (runs_ > 1) {
      // A unit's results for each part are held here until its last run is done.
      parts_ = most_parts();
      const size_t units = static_cast<size_t>(source_.groups) * tiles_, sums = units * parts_ * at_once_;
      const size_t mixed_bytes = sums * padded(d) * sizeof(float), sum_bytes = sums * sizeof(Softmax);
      uint8_t* space = machine_.space.of(mixed_bytes + sum_bytes + units * sizeof(std::atomic<int>));
      mixed_ = reinterpret_cast<float*>(space);
      sums_ = reinterpret_cast<Softmax*>(space + mixed_bytes);
      left_ = reinterpret_cast<std::atomic<int>*>(space + mixed_bytes + sum_bytes);
      for (size_t i = 0; i < units; i++) new (left_ + i) std::atomic<int>(runs_);
    }
    const auto attend_unit = [this](int unit) {
      const int run = unit % runs_, group = unit / runs_ % source_.groups;
      attend(group, tiles_ - 1 - unit / runs_ / source_.groups, run);  // the longest first: late tiles see most
    };
    machine_.threads.run(source_.groups * tiles_ * runs_, attend_unit, tiles_ == 1 ? Sharing::NEIGHBOURS : Sharing::IN_ORDER);
  }

 private:
  // A part, counted in the cache that it is of.
  struct PartAt {
    int index;
    bool beside;
  };

  Range queries(int tile) const {
    return {tile * at_once_, std::min((tile + 1) * at_once_, source_.queries)};
  }

  // The positions that at least one of these queries sees.
  Range seen(int group, const Range& range) const {
    Range all = {0, 0};
    for (int j = range.first; j < range.last; j++) {
      const Range sees = source_.sees(group, j);
      if (sees.count() == 0) continue;
      all = all.count() ? Range{std::min(all.first, sees.first), std::max(all.last, sees.last)} : sees;
    }
    return all;
  }

  // Parts that hold something of a range.
  static Range parts_of(const Range& range) {
    return range.count() ? Range{range.first / PART, parts(range.last, PART)} : Range{0, 0};
  }

  Range seen(int group, int tile) const { return seen(group, queries(tile)); }

  // The positions that at least one query sees.
  Range seen(int group) const {
    if (!source_.in_order()) return seen(group, Range{0, source_.queries});
    const Range first = source_.sees(group, 0), last = source_.sees(group, source_.queries - 1);
    return {std::min(first.first, last.first), std::max(first.last, last.last)};
  }

  int parts_beside(int group) const { return parts(source_.beside(group), PART); }

  int most_parts() const {
    int most = 1;
    for (int group = 0; group < source_.groups; group++)
      most = std::max(most, parts_of(seen(group)).count() + parts_beside(group));
    return most;
  }

  // All that is new, before several tiles read it.
  void write() {
    int most = 0;
    for (int group = 0; group < source_.groups; group++) most = std::max(most, source_.written(group).count());
    const int pieces = parts(most, WRITTEN_AT_ONCE);
    if (pieces == 0) return;
    machine_.threads.run(source_.groups * pieces, [&](int unit) {
      const int group = unit / pieces;
      const Range all = source_.written(group);
      const int first = all.first + unit % pieces * WRITTEN_AT_ONCE;
      source_.write(group, {first, std::min(first + WRITTEN_AT_ONCE, all.last)}, Tile(1, source_.head_dim).line);
    });
  }

  void attend(int group, int tile, int run) {
    const Range own = parts_of(seen(group, tile)), range = queries(tile);
    // Of all parts, counted from the first of the group's own; those beside come last.
    const int all = own.count() + parts_beside(group);
    const Range mine = {all * run / runs_, all * (run + 1) / runs_};
    const int d = source_.head_dim, count = range.count();
    const Tile space(at_once_, d);
    if (tiles_ == 1) {  // no other unit reads the new positions in these parts
      const Range fresh = source_.written(group);
      const auto begin_of = [&](int p) { return (own.first + std::min(p, own.count())) * PART; };
      const int from = run == 0 ? fresh.first : std::max(fresh.first, begin_of(mine.first));
      const int to = run + 1 == runs_ ? fresh.last : std::min(fresh.last, begin_of(mine.last));
      source_.write(group, {from, to}, space.line);
    }
    for (int j = 0; j < count; j++) source_.pack(group, range.first + j, space.query + j * padded(d));
    const size_t unit = static_cast<size_t>(group) * tiles_ + tile;
    Softmax sums[MANY_QUERIES], of_part[MANY_QUERIES];
    std::fill(sums, sums + count, Softmax{-INFINITY, 0});
    for (int p = mine.first; p < mine.last; p++) {
      const PartAt place = p < own.count() ? PartAt{own.first + p, false} : PartAt{p - own.count(), true};
      const size_t at = (unit * parts_ + p) * at_once_;
      if (runs_ > 1) {
        attend_part(group, range, place, space, sums_ + at, mixed_ + at * padded(d));
        continue;
      }
      attend_part(group, range, place, space, of_part, space.part);
      for (int j = 0; j < count; j++)
        merge(sums[j], space.mixed + j * padded(d), of_part[j], space.part + j * padded(d), d);
    }
    if (runs_ > 1) {
      if (left_[unit].fetch_sub(1) != 1) return;
      for (int p = 0; p < all; p++)
        for (int j = 0; j < count; j++) {
          const size_t at = (unit * parts_ + p) * at_once_ + j;
          merge(sums[j], space.mixed + j * padded(d), sums_[at], mixed_ + at * padded(d), d);
        }
    }
    for (int j = 0; j < count; j++)
      finish(sums[j], space.mixed + j * padded(d), source_.results(), source_.sink(group, range.first + j),
             source_.out(group, range.first + j));
  }

  // Parts are packed for all tiles, after the new positions are written.
  void run_prompt() {
    const int threads = machine_.threads.count(), wanted = threads == 1 ? 1 : UNITS_A_THREAD * threads;
    const int fitting = source_.queries / parts(wanted, source_.groups);
    const int most = std::min({fitting, PROMPT_QUERIES, PROMPT_NUMBERS / padded(source_.head_dim)});
    at_once_ = std::max(most / LEAST_PROMPT_QUERIES, 1) * LEAST_PROMPT_QUERIES;
    tiles_ = parts(source_.queries, at_once_);
    parts_ = most_parts();
    const size_t part_bytes = prompt_->part_bytes(source_.head_dim);
    uint8_t* const packed = machine_.space.of(static_cast<size_t>(source_.groups) * parts_ * part_bytes);
    machine_.threads.run(source_.groups * parts_, [&](int unit) {
      const int group = unit / parts_;
      const Range all = seen(group);
      const int index = parts_of(all).first + unit % parts_;
      if (index < parts_of(all).last) pack_prompt(group, index, all, packed + unit * part_bytes);
    });
    const auto attend_unit = [&](int unit) {  // the longest first: late tiles see most
      const int group = unit % source_.groups, tile = tiles_ - 1 - unit / source_.groups;
      attend_prompt(group, tile, packed + static_cast<size_t>(group) * parts_ * part_bytes, part_bytes);
    };
    machine_.threads.run(source_.groups * tiles_, attend_unit, Sharing::IN_ORDER);
  }

  void pack_prompt(int group, int index, const Range& all, uint8_t* packed) const {
    const int begin = index * PART, end = begin + PART;
    const Range fresh = source_.written(group);
    source_.write(group, {std::max(fresh.first, begin), std::min(fresh.last, end)}, Tile(1, source_.head_dim).line);
    prompt_->pack(positions_of(group, index, {std::max(all.first - begin, 0), std::min(all.last - begin, PART)}), packed);
  }

  // A tile over its parts in turn; `packed`: the group's parts.
  void attend_prompt(int group, int tile, const uint8_t* packed, size_t part_bytes) const {
    static thread_local Space space;
    const Range all = parts_of(seen(group, tile)), range = queries(tile);
    const int d = source_.head_dim, count = range.count(), first_packed = parts_of(seen(group)).first;
    float* const lines = Tile(PROMPT_LANES, d).query;
    const PromptTile to = {d, count, source_.softcap(), space.of(prompt_->tile_bytes(count, d))};
    prompt_->begin(to);
    for (int j = 0; j < count; j++) {
      source_.pack(group, range.first + j, lines);
      prompt_->take_query(to, j, lines, source_.sink(group, range.first + j));
    }
    for (int p = all.first; p < all.last; p++) {
      int first[PROMPT_QUERIES], last[PROMPT_QUERIES];
      find_seen(group, range, p, first, last);
      prompt_->attend(to, packed + (p - first_packed) * part_bytes, first, last);
    }
    for (int j = 0; j < count; j++) {
      if (j % PROMPT_LANES == 0) prompt_->results(to, j, lines);
      std::memcpy(source_.out(group, range.first + j), lines + j % PROMPT_LANES * padded(d), source_.results() * sizeof(float));
    }
  }

  // The positions of a part that each query sees, counted in the part; returns all of them.
  Range find_seen(int group, const Range& queries, int index, int* first, int* last) const {
    Range all = {PART, 0};
    for (int j = 0; j < queries.count(); j++) {
      const Range sees = source_.sees(group, queries.first + j);
      first[j] = std::min(std::max(sees.first - index * PART, 0), PART);
      last[j] = std::max(std::min(sees.last - index * PART, PART), first[j]);
      if (first[j] < last[j]) all = {std::min(all.first, first[j]), std::max(all.last, last[j])};
    }
    return all;
  }

  // Some positions of a part, without queries.
  Part positions_of(int group, int index, const Range& positions) const {
    return lines_of(source_.keys(group), source_.values(group), source_.capacity, index, positions);
  }

  Part lines_of(const HeadLines& keys, const HeadLines& values, int capacity, int index, const Range& positions) const {
    Part part{};
    part.head_dim = source_.head_dim;
    part.key_number = keys.number;
    part.value_number = values.number;
    part.begin = positions.first;
    if (positions.count() > 0) {
      const int slot = (index * PART + positions.first) % capacity;
      part.counts[0] = std::min(positions.count(), capacity - slot);
      part.counts[1] = positions.count() - part.counts[0];
      part.keys[0] = keys.slot(slot, part.head_dim);
      part.values[0] = values.slot(slot, part.head_dim);
      part.keys[1] = keys.data;
      part.values[1] = values.data;
    }
    return part;
  }

  // A part of positions beside, which all of some queries see.
  Part beside_of(int group, int index, int queries, int* first, int* last) const {
    const int count = source_.beside(group), end = std::min(count - index * PART, PART);
    std::fill_n(first, queries, 0);
    std::fill_n(last, queries, end);
    return lines_of(source_.beside_keys(group), source_.beside_values(group), count, index, {0, end});
  }

  void attend_part(int group, const Range& queries, PartAt at, const Tile& space, Softmax* sums, float* mixed) const {
    int first[MANY_QUERIES], last[MANY_QUERIES];
    const float* biases[MANY_QUERIES];
    Part part = at.beside ? beside_of(group, at.index, queries.count(), first, last)
                          : positions_of(group, at.index, find_seen(group, queries, at.index, first, last));
    for (int j = 0; j < queries.count(); j++) {
      biases[j] = at.beside ? nullptr : source_.bias(group, queries.first + j);
      if (biases[j] != nullptr) biases[j] += at.index * PART;
    }
    part.queries = queries.count();
    part.query = space.query;
    part.first = first;
    part.last = last;
    part.bias = biases[0] == nullptr ? nullptr : biases;
    part.softcap = source_.softcap();
    with_.attend(part, space.scores, sums, mixed);
  }

  Machine& machine_;
  const Attention& with_;
  const Source& source_;
  const PromptAttention* const prompt_;
  int at_once_ = 0, tiles_ = 0, runs_ = 0, parts_ = 0;  // at_once_: queries of a tile
  float* mixed_ = nullptr;   // [units, parts, at_once_, padded(d)]
  Softmax* sums_ = nullptr;  // [units, parts, at_once_]
  std::atomic<int>* left_ = nullptr;
};

// x [d] rotated to a position, by tables [positions, d / 2]; unchanged without them.
inline void rotate(const Attention& with, const float* x, int head_dim, const float* cosines, const float* sines, int position,
            float* to) {
  const size_t at = static_cast<size_t>(position) * (head_dim / 2);
  if (cosines == nullptr)
    std::memcpy(to, x, head_dim * sizeof(float));
  else
    with.rotate(x, cosines + at, sines + at, head_dim / 2, to);
}

}  // namespace kvcast
