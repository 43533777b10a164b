// Attention with and without caches: the part that all ISAs share.
//
// Work is cut into units: a tile of queries that share keys and values, and a run of parts of positions. Parts
// begin at multiples of PART, whatever is new and wherever it lies, and a query's are merged in their order. So
// a query's result depends on the positions that it sees and on nothing else: not on the cut, the other
// queries, or the capacity of a ring.
#include "program.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

namespace kvcast {
namespace {

constexpr int UNITS_A_THREAD = 4;
constexpr int WRITTEN_AT_ONCE = 64;
constexpr int COPIED_AT_ONCE = 64;
constexpr int QUERIES_AT_ONCE = 10 * MOST_ROWS;
constexpr int LEAST_PROMPT_QUERIES = 2 * PROMPT_LANES;  // of a tile
constexpr int PROMPT_NUMBERS = 64 * PROMPT_QUERIES;    // of a tile's results, which stay in the second cache

// The bytes of a cache's unit: its strides count these.
size_t size_of(Number number) { return line_bytes(number, 1) - line_bytes(number, 0); }

const uint8_t* bytes(const void* data) { return static_cast<const uint8_t*>(data); }

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

HeadLines head_of(const Heads& heads, int n, int head) {
  const size_t first = n * heads.stride + head * heads.head_stride;
  return {bytes(heads.data) + first * size_of(heads.number), heads.number};
}

// Queries that share keys and values, a group of them for each head of keys of each row.
struct Source {
  int groups, queries, head_dim, capacity;

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

const float* bias_of(const Bias& bias, size_t n, size_t head, size_t query) {
  if (bias.data == nullptr) return nullptr;
  return bias.data + n * bias.stride + head * bias.head_stride + query * bias.query_stride;
}

void scaled(const float* x, int count, float scale, float* to) {
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
void merge(Softmax& sum, float* mixed, const Softmax& part, const float* part_mixed, int head_dim) {
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
void finish(const Softmax& sum, const float* mixed, int head_dim, float sink, float* out) {
  if (sum.total == 0) {
    std::fill(out, out + head_dim, 0.f);
    return;
  }
  const float most = std::max(sum.most, sink), kept = std::exp(sum.most - most);
  const float factor = kept / (sum.total * kept + std::exp(sink - most));  // a NaN in a score propagates to the result
  for (int i = 0; i < head_dim; i++) out[i] = mixed[i] * factor;
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
      finish(sums[j], space.mixed + j * padded(d), d, source_.sink(group, range.first + j),
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
      std::memcpy(source_.out(group, range.first + j), lines + j % PROMPT_LANES * padded(d), d * sizeof(float));
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
void rotate(const Attention& with, const float* x, int head_dim, const float* cosines, const float* sines, int position,
            float* to) {
  const size_t at = static_cast<size_t>(position) * (head_dim / 2);
  if (cosines == nullptr)
    std::memcpy(to, x, head_dim * sizeof(float));
  else
    with.rotate(x, cosines + at, sines + at, head_dim / 2, to);
}

// New positions first .. last of each row. They evict nothing that any of them sees.
struct SelfSource final : Source {
  const SelfAttention& of;
  const Instructions& sets;
  const Attention& with;
  const Range fresh;

  SelfSource(const SelfAttention& self, const Instructions& with, const Range& fresh)
      : of(self), sets(with), with(with.attention), fresh(fresh) {
    groups = of.rows * of.key_heads;
    queries = fresh.count() * shared();
    head_dim = of.head_dim;
    capacity = of.capacity;
  }

  int shared() const { return of.heads / of.key_heads; }
  int row(int group) const { return group / of.key_heads; }
  int key_head(int group) const { return group % of.key_heads; }
  // A query's line, and its index among the new positions.
  int new_line(int query) const { return fresh.first + query / shared(); }
  int new_position(int query) const {
    const int s = new_line(query);
    return of.offsets == nullptr ? s : static_cast<int>(of.offsets[s]);
  }
  int head(int group, int query) const { return key_head(group) * shared() + query % shared(); }
  size_t line(int group, int position) const { return static_cast<size_t>(row(group)) * of.new_positions + position; }

  HeadLines keys(int group) const override { return head_of(of.key_cache, row(group), key_head(group)); }
  HeadLines values(int group) const override { return head_of(of.value_cache, row(group), key_head(group)); }

  Range sees(int group, int query) const override {
    const int length = of.lengths[row(group)];
    const int last = length + (of.causal ? new_position(query) + 1 : of.new_positions);
    return {of.window ? std::max(0, last - of.window) : 0, last};
  }

  void pack(int group, int query, float* to) const override {
    const float* x = of.query.data + line(group, new_line(query)) * of.query.stride +
                     static_cast<size_t>(head(group, query)) * head_dim;
    rotate(with, x, head_dim, of.cosines, of.sines, of.lengths[row(group)] + new_position(query), to);
    scaled(to, head_dim, of.scale, to);
  }

  const float* bias(int group, int query) const override {
    return bias_of(of.bias, row(group), head(group, query), new_position(query));
  }

  float* out(int group, int query) const override {
    return of.out.data + line(group, new_line(query)) * of.out.stride +
           static_cast<size_t>(head(group, query)) * head_dim;
  }

  bool in_order() const override { return of.offsets == nullptr; }
  float softcap() const override { return of.softcap; }
  float sink(int group, int query) const override { return of.sinks ? of.sinks[head(group, query)] : -INFINITY; }

  int input(int group) const { return row(group) / of.rows_each; }
  int beside(int group) const override {
    if (of.cross_key.data == nullptr) return 0;
    return of.cross_lengths == nullptr ? of.cross_positions : std::min<int>(of.cross_lengths[input(group)], of.cross_positions);
  }
  HeadLines beside_keys(int group) const override { return head_of(of.cross_key, input(group), key_head(group)); }
  HeadLines beside_values(int group) const override { return head_of(of.cross_value, input(group), key_head(group)); }

  // The same for all calls of a model.
  const PromptAttention* prompt_attention() const override {
    const PromptAttention* const prompt = sets.prompt_attention;
    const bool plain = of.bias.data == nullptr && of.cross_key.data == nullptr;
    return of.prompt && plain && prompt != nullptr && head_dim <= prompt->widest_head ? prompt : nullptr;
  }

  Range written(int group) const override {
    if (of.offsets != nullptr) return {0, 0};
    const int length = of.lengths[row(group)];
    return {length + fresh.first, length + fresh.last};
  }

  void write(int group, const Range& positions, float* space) const override {
    for (int p = positions.first; p < positions.last; p++) {
      const size_t from = line(group, p - of.lengths[row(group)]);
      const size_t offset = static_cast<size_t>(key_head(group)) * head_dim;
      rotate(with, of.key.data + from * of.key.stride + offset, head_dim, of.cosines, of.sines, p, space);
      put(space, keys(group), p % capacity);
      put(of.value.data + from * of.value.stride + offset, values(group), p % capacity);
    }
  }

  void put(const float* x, const HeadLines& to, int slot) const {
    with.store(x, head_dim, to.number, const_cast<void*>(to.slot(slot, head_dim)));
  }
};

struct CrossSource final : Source {
  const CrossAttention& of;

  explicit CrossSource(const CrossAttention& cross) : of(cross) {
    groups = of.inputs * of.key_heads;
    queries = of.queries_each * shared();
    head_dim = of.head_dim;
    capacity = std::max(1, of.positions);
  }

  int shared() const { return of.heads / of.key_heads; }
  int input(int group) const { return group / of.key_heads; }
  int key_head(int group) const { return group % of.key_heads; }
  int head(int group, int query) const { return key_head(group) * shared() + query % shared(); }
  size_t line(int group, int query) const {
    return static_cast<size_t>(input(group)) * of.queries_each + query / shared();
  }
  size_t offset(int group, int query) const { return static_cast<size_t>(head(group, query)) * head_dim; }

  HeadLines keys(int group) const override { return head_of(of.key, input(group), key_head(group)); }
  HeadLines values(int group) const override { return head_of(of.value, input(group), key_head(group)); }

  Range sees(int group, int) const override {
    return {0, of.lengths == nullptr ? of.positions : std::min<int>(of.lengths[input(group)], of.positions)};
  }

  void pack(int group, int query, float* to) const override {
    scaled(of.query.data + line(group, query) * of.query.stride + offset(group, query), head_dim, of.scale, to);
  }

  const float* bias(int group, int query) const override {
    const size_t at = line(group, query);
    return bias_of(of.bias, at / of.new_positions, head(group, query), at % of.new_positions);
  }

  float* out(int group, int query) const override {
    return of.out.data + line(group, query) * of.out.stride + offset(group, query);
  }

  float softcap() const override { return of.softcap; }
};

// Keys and values were copied to [b, g, t, d].
struct WholeSource final : Source {
  const WholeAttention& of;
  const Attention& with;
  const float *key, *value;

  WholeSource(const WholeAttention& whole, const Attention& with, const float* key, const float* value)
      : of(whole), with(with), key(key), value(value) {
    groups = of.inputs * of.key_heads;
    queries = of.positions * shared();
    head_dim = of.head_dim;
    capacity = of.positions;
  }

  int shared() const { return of.heads / of.key_heads; }
  int input(int group) const { return group / of.key_heads; }
  int key_head(int group) const { return group % of.key_heads; }
  int position(int query) const { return query / shared(); }
  int head(int group, int query) const { return key_head(group) * shared() + query % shared(); }
  size_t line(int group, int position) const { return static_cast<size_t>(input(group)) * of.positions + position; }
  size_t offset(int group, int query) const { return static_cast<size_t>(head(group, query)) * head_dim; }
  size_t part(int group) const { return static_cast<size_t>(group) * of.positions * head_dim; }

  HeadLines keys(int group) const override { return {key + part(group), Number::F32}; }
  HeadLines values(int group) const override { return {value + part(group), Number::F32}; }

  int length(int group) const {
    return of.lengths == nullptr ? of.positions : std::min<int>(of.lengths[input(group)], of.positions);
  }

  // Positions past the length see nothing, after all that others see.
  Range sees(int group, int query) const override {
    const int at = position(query), end = length(group);
    if (at >= end) return {end, end};
    return of.window ? Range{std::max(0, at - (of.window - 1) / 2), std::min(end, at + of.window / 2 + 1)} : Range{0, end};
  }

  void pack(int group, int query, float* to) const override {
    const float* const x = of.query.data + line(group, position(query)) * of.query.stride + offset(group, query);
    rotate(with, x, head_dim, of.cosines, of.sines, position(query), to);
    scaled(to, head_dim, of.scale, to);
  }

  const float* bias(int group, int query) const override {
    return bias_of(of.bias, input(group), head(group, query), position(query));
  }

  float* out(int group, int query) const override {
    return of.out.data + line(group, position(query)) * of.out.stride + offset(group, query);
  }

  float softcap() const override { return of.softcap; }
};

void whole_exact(Machine& machine, const WholeAttention& of) {
  const size_t numbers = static_cast<size_t>(of.inputs) * of.key_heads * of.positions * of.head_dim;
  // Their own space: the runs of parts may want the machine's.
  static thread_local Space space;
  float* key = reinterpret_cast<float*>(space.of(2 * numbers * sizeof(float)));
  const WholeSource source(of, machine.with.attention, key, key + numbers);
  const int pieces = parts(of.positions, COPIED_AT_ONCE);
  machine.threads.run(of.inputs * pieces, [&](int unit) {
    const int input = unit / pieces, first = unit % pieces * COPIED_AT_ONCE;
    const int last = std::min(first + COPIED_AT_ONCE, source.length(input * of.key_heads));
    for (int t = first; t < last; t++)
      for (int head = 0; head < of.key_heads; head++) {
        const int group = input * of.key_heads + head;
        const size_t from = source.line(group, t), to = source.part(group) + static_cast<size_t>(t) * of.head_dim;
        const size_t offset = static_cast<size_t>(head) * of.head_dim;
        rotate(machine.with.attention, of.key.data + from * of.key.stride + offset, of.head_dim, of.cosines, of.sines, t, key + to);
        std::memcpy(key + numbers + to, of.value.data + from * of.value.stride + offset, of.head_dim * sizeof(float));
      }
  });
  Attending(machine, source).run();
}

// With the tiles for many positions: query, key and value have one layout, all see all, and nothing is added or
// rotated.
void whole_in_tiles(Machine& machine, const WholeAttention& of) {
  const EncoderAttention& with = machine.with.encoder_attention;
  const int d = of.head_dim, groups = of.inputs * of.heads;
  const int blocks = parts(of.positions, BLOCK), pieces = parts(of.positions, QUERIES_AT_ONCE);
  const size_t head_bytes = with.head_bytes(of.positions, d);
  uint8_t* space = machine.space.of(groups * head_bytes);
  const auto length = [&](int input) {
    return of.lengths == nullptr ? of.positions : std::min<int>(of.lengths[input], of.positions);
  };
  const auto lines = [&](const Flat& flat, int group) {
    const size_t input = group / of.heads, head = group % of.heads;
    return flat.data + input * of.positions * flat.stride + head * d;
  };
  const auto head_of_group = [&](int group) -> EncoderHead {
    return {lines(of.query, group),
            lines(of.key, group),
            lines(of.value, group),
            of.query.stride,
            length(group / of.heads),
            d,
            of.scale,
            space + group * head_bytes,
            lines(of.out, group),
            of.out.stride};
  };
  machine.threads.run(groups * blocks, [&](int unit) {
    // Heads innermost: they are adjacent.
    const int head = unit % of.heads, input = unit / of.heads / blocks, group = input * of.heads + head;
    const int first = unit / of.heads % blocks * BLOCK;
    if (first < length(input)) with.pack_head(head_of_group(group), first);
  });
  machine.threads.run(groups * pieces, [&](int unit) {
    const int first = unit % pieces * QUERIES_AT_ONCE, last = std::min(first + QUERIES_AT_ONCE, of.positions);
    const EncoderHead head = head_of_group(unit / pieces);
    const int there = std::max(first, std::min(last, head.positions));
    if (first < there) with.attend(head, first, there);
    for (int t = there; t < last; t++) std::fill_n(head.out + t * head.out_stride, d, 0.f);
  });
}

}  // namespace

void self_attention(Machine& machine, const SelfAttention& of) {
  if (of.rows == 0 || of.new_positions == 0) return;
  const int longest = *std::max_element(of.lengths, of.lengths + of.rows);
  if (of.offsets != nullptr) {
    for (int s = 0; s < of.new_positions; s++)
      if (of.offsets[s] < 0 || of.offsets[s] >= of.capacity - longest) throw std::out_of_range("a query is past its cache");
    Attending(machine, SelfSource(of, machine.with, {0, of.new_positions})).run();
    return;
  }
  // Position p evicts p - capacity. If a query of this call still sees that, new positions are taken in chunks that
  // evict nothing that any of them sees.
  const bool all_fit = !of.causal || of.capacity >= of.window + of.new_positions - 1 ||
                       longest + of.new_positions <= of.capacity;
  const int at_once = all_fit ? of.new_positions : std::max(1, of.capacity - of.window + 1);
  for (int first = 0; first < of.new_positions; first += at_once) {
    const SelfSource source(of, machine.with, {first, std::min(first + at_once, of.new_positions)});
    Attending(machine, source).run();
  }
}

void store(Machine& machine, const Storing& of) {
  const int pieces = parts(of.positions, WRITTEN_AT_ONCE);
  machine.threads.run(of.count * of.heads * pieces, [&](int unit) {
    const int first = unit % pieces * WRITTEN_AT_ONCE, last = std::min(first + WRITTEN_AT_ONCE, of.positions);
    const int head = unit / pieces % of.heads, n = unit / pieces / of.heads;
    const HeadLines to = head_of(of.to, n, head);
    const float* x = of.x + n * of.stride + head * of.head_stride;
    for (int t = first; t < last; t++)
      machine.with.attention.store(x + t * of.position_stride, of.head_dim, to.number,
                                   const_cast<void*>(to.slot(t, of.head_dim)));
  });
}

void cross_attention(Machine& machine, const CrossAttention& of) {
  if (of.inputs > 0 && of.queries_each > 0) Attending(machine, CrossSource(of)).run();
}

void whole_attention(Machine& machine, const WholeAttention& of) {
  if (of.inputs == 0 || of.positions == 0) return;
  const bool alike = of.query.stride == of.key.stride && of.query.stride == of.value.stride && of.heads == of.key_heads;
  const bool plain = of.bias.data == nullptr && of.window == 0 && of.softcap == 0 && of.cosines == nullptr;
  if (!of.exact && plain && alike && of.head_dim <= WIDEST_HEAD)
    whole_in_tiles(machine, of);
  else
    whole_exact(machine, of);
}

}  // namespace kvcast
