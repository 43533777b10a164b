// Attention with and without caches: the part that all ISAs share.
#include "attending.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kvcast {
namespace {

constexpr int COPIED_AT_ONCE = 64;
constexpr int QUERIES_AT_ONCE = 10 * MOST_ROWS;

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
