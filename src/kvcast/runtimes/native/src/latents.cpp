// Attention to latents: one line per position for all heads, the latent and a rotated part of the key.
//
// Per-head up-projections make keys and values of latents. A decode step absorbs that of keys into the query and
// attends to the latents themselves (DeepSeek-V2, arXiv:2405.04434, section 2.1.2); a prefill expands the latents of
// all positions to keys and values, some heads at a time, and forgets these.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "attending.hpp"
#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int ROWS_AT_ONCE = 42 * MOST_ROWS;
constexpr int LINES_AT_ONCE = 64;
constexpr size_t EXPANDED_BYTES = 64u << 20;  // of the heads that are expanded together
constexpr size_t GATHERED_BYTES = 32u << 20;  // of the positions that are read together

// The new latents of each row as lines of its cache.
void write_line(const LatentCache& of, const Attention& with, int row, int position, float* space) {
  const size_t line = static_cast<size_t>(row) * of.new_positions + position - of.lengths[row];
  std::memcpy(space, of.latent.data + line * of.latent.stride, of.rank * sizeof(float));
  rotate(with, of.key.data + line * of.key.stride, of.rotated, of.cosines, of.sines, position, space + of.rank);
  const HeadLines to = head_of(of.cache, row, 0);
  with.store(space, of.rank + of.rotated, to.number, const_cast<void*>(to.slot(position, of.rank + of.rotated)));
}

struct LatentSource final : Source {
  const LatentAttention& of;
  const LatentCache& held;
  const Attention& with;

  LatentSource(const LatentAttention& latent, const Attention& with) : of(latent), held(latent.held), with(with) {
    groups = held.rows;
    queries = held.new_positions * of.heads;
    head_dim = held.rank + held.rotated;
    out_dim = held.rank;
    capacity = held.capacity;
  }

  int position(int group, int query) const { return held.lengths[group] + query / of.heads; }
  size_t line(int group, int query) const {
    return static_cast<size_t>(group) * held.new_positions + query / of.heads;
  }
  size_t head(int query) const { return query % of.heads; }

  HeadLines keys(int group) const override { return head_of(held.cache, group, 0); }
  HeadLines values(int group) const override { return keys(group); }
  Range sees(int group, int query) const override { return {0, position(group, query) + 1}; }

  void pack(int group, int query, float* to) const override {
    const size_t at = line(group, query);
    std::memcpy(to, of.absorbed.data + at * of.absorbed.stride + head(query) * held.rank, held.rank * sizeof(float));
    const float* const rotated = of.query.data + at * of.query.stride + (head(query) + 1) * of.query_dim - held.rotated;
    rotate(with, rotated, held.rotated, held.cosines, held.sines, position(group, query), to + held.rank);
    scaled(to, head_dim, of.scale, to);
  }

  const float* bias(int, int) const override { return nullptr; }
  float* out(int group, int query) const override {
    return of.out.data + line(group, query) * of.out.stride + head(query) * held.rank;
  }
  Range written(int group) const override {
    return {held.lengths[group], held.lengths[group] + (held.latent.data == nullptr ? 0 : held.new_positions)};
  }
  void write(int group, const Range& positions, float* space) const override {
    for (int p = positions.first; p < positions.last; p++) write_line(held, with, group, p, space);
  }
};

// Some new positions, each over the lines that it reads, which were copied to lie beside each other.
struct GatheredSource final : Source {
  const LatentSource of;
  const int first;
  const uint8_t* const lines;

  GatheredSource(const LatentAttention& latent, const Attention& with, int first, int count, const uint8_t* lines)
      : of(latent, with), first(first), lines(lines) {
    groups = count;
    queries = latent.heads;
    head_dim = of.head_dim;
    out_dim = of.out_dim;
    capacity = latent.most;
  }

  int row(int group) const { return (first + group) / of.held.new_positions; }
  int query(int group, int query) const { return (first + group) % of.held.new_positions * queries + query; }

  HeadLines keys(int group) const override {
    const Number number = of.held.cache.number;
    return {lines + static_cast<size_t>(group) * capacity * line_bytes(number, head_dim), number};
  }
  HeadLines values(int group) const override { return keys(group); }
  Range sees(int group, int) const override {
    return {0, std::min(of.position(row(group), query(group, 0)) + 1, capacity)};
  }
  void pack(int group, int q, float* to) const override { of.pack(row(group), query(group, q), to); }
  const float* bias(int, int) const override { return nullptr; }
  float* out(int group, int q) const override { return of.out(row(group), query(group, q)); }
};

// Some heads of a row over all of its positions, expanded to keys and values [heads, positions, head_dim].
struct ExpandedSource final : Source {
  const ExpandedAttention& of;
  const Instructions& sets;
  const int row, first_head;
  const float *key, *value;

  ExpandedSource(const ExpandedAttention& expanded, const Instructions& sets, int row, int first_head, int heads,
                 int dim, const float* key, const float* value)
      : of(expanded), sets(sets), row(row), first_head(first_head), key(key), value(value) {
    groups = heads;
    queries = of.held.new_positions;
    head_dim = dim;
    out_dim = of.values.outputs;
    capacity = of.held.lengths[row] + queries;
  }

  size_t line(int query) const { return static_cast<size_t>(row) * queries + query; }
  size_t part(int group) const { return static_cast<size_t>(group) * capacity * head_dim; }
  int position(int query) const { return of.held.lengths[row] + query; }

  HeadLines keys(int group) const override { return {key + part(group), Number::F32}; }
  HeadLines values(int group) const override { return {value + part(group), Number::F32}; }
  Range sees(int, int query) const override { return {0, position(query) + 1}; }

  void pack(int group, int query, float* to) const override {
    const int plain = of.keys.outputs, dim = plain + of.held.rotated;
    const float* x = of.query.data + line(query) * of.query.stride + static_cast<size_t>(first_head + group) * dim;
    std::memcpy(to, x, plain * sizeof(float));
    rotate(sets.attention, x + plain, of.held.rotated, of.held.cosines, of.held.sines, position(query), to + plain);
    std::fill(to + dim, to + head_dim, 0.f);
    scaled(to, head_dim, of.scale, to);
  }

  const float* bias(int, int) const override { return nullptr; }
  float* out(int group, int query) const override {
    return of.out.data + line(query) * of.out.stride + static_cast<size_t>(first_head + group) * out_dim;
  }
  const PromptAttention* prompt_attention() const override {
    const PromptAttention* const prompt = sets.prompt_attention;
    return prompt != nullptr && head_dim <= prompt->widest_head ? prompt : nullptr;
  }
};

// A row's latents as the matrices take them, and the rotated parts of its keys.
class Latents {
 public:
  Latents(Machine& machine, const ExpandedAttention& of, int row) : width_(of.held.rank + of.held.rotated) {
    static thread_local Space space;
    count_ = of.held.lengths[row] + of.held.new_positions;
    const size_t floats = static_cast<size_t>(count_) * width_ * sizeof(float), aligned = (floats + 63) / 64 * 64;
    is_float_ = of.keys.format == Format::F32;
    uint8_t* const data = space.of(aligned + (is_float_ ? 0 : rounded_bytes(count_, of.held.rank)));
    lines_ = reinterpret_cast<float*>(data);
    const HeadLines held = head_of(of.held.cache, row, 0);
    machine.threads.run(parts(count_, LINES_AT_ONCE), [&](int part) {
      for (int t = part * LINES_AT_ONCE; t < std::min((part + 1) * LINES_AT_ONCE, count_); t++)
        machine.with.scores.read(held.slot(t, width_), held.number, width_, lines_ + static_cast<size_t>(t) * width_);
    });
    if (is_float_) return;
    codes_ = rounded(data + aligned, count_, of.held.rank);
    round_rows(machine, lines_, width_, count_, of.held.rank, codes_);
  }

  // out [count, matrix's outputs], with a stride.
  void multiply_by(Machine& machine, const Matrix& matrix, float* out, size_t stride) const {
    Product product{};
    product.matrix = matrix;
    product.rows = count_;
    product.x = is_float_ ? lines_ : nullptr;
    product.stride = width_;
    product.in = codes_;
    product.activation = Activation::NONE;
    product.out = out;
    product.out_stride = stride;
    multiply(machine, product);
  }

  int count() const { return count_; }
  const float* rotated(int position, int size) const { return lines_ + static_cast<size_t>(position + 1) * width_ - size; }

 private:
  int width_, count_;
  bool is_float_;
  float* lines_;
  Rounded codes_{};
};

// The keys and values of a head, both zero-padded to `dim`.
void expand_head(Machine& machine, const ExpandedAttention& of, const Latents& latents, int head, int dim, float* key,
                 float* value) {
  latents.multiply_by(machine, matrix_of(of.keys, head), key, dim);
  latents.multiply_by(machine, matrix_of(of.values, head), value, dim);
  const int plain = of.keys.outputs, rotated = of.held.rotated;
  for_rows(machine, latents.count(), dim, [&](int t) {
    float* const line = key + static_cast<size_t>(t) * dim;
    std::memcpy(line + plain, latents.rotated(t, rotated), rotated * sizeof(float));
    std::fill(line + plain + rotated, line + dim, 0.f);
    std::fill(value + static_cast<size_t>(t) * dim + of.values.outputs, value + static_cast<size_t>(t + 1) * dim, 0.f);
  });
}

void attend_expanded(Machine& machine, const ExpandedAttention& of, int row) {
  // Its own space: the parts want the machine's.
  static thread_local Space space;
  const Latents latents(machine, of, row);
  const int dim = std::max(of.keys.outputs + of.held.rotated, of.values.outputs);
  const size_t numbers = static_cast<size_t>(latents.count()) * dim, each = 2 * numbers * sizeof(float);
  const int at_once = std::clamp(static_cast<int>(EXPANDED_BYTES / each), 1, of.heads);
  float* const key = reinterpret_cast<float*>(space.of(at_once * each));
  float* const value = key + at_once * numbers;
  for (int first = 0; first < of.heads; first += at_once) {
    const int heads = std::min(at_once, of.heads - first);
    for (int i = 0; i < heads; i++)
      expand_head(machine, of, latents, first + i, dim, key + i * numbers, value + i * numbers);
    Attending(machine, ExpandedSource(of, machine.with, row, first, heads, dim, key, value)).run();
  }
}

void write_all(Machine& machine, const LatentCache& of) {
  if (of.latent.data == nullptr) return;  // an earlier layer wrote them
  const int width = of.rank + of.rotated;
  for_rows(machine, of.rows * of.new_positions, width, [&](int line) {
    static thread_local Space space;
    float* const work = reinterpret_cast<float*>(space.of(padded(width) * sizeof(float)));
    const int row = line / of.new_positions;
    write_line(of, machine.with.attention, row, of.lengths[row] + line % of.new_positions, work);
  });
}

// Copies the lines that a new position reads; throws std::out_of_range for those of no position.
void gather(const LatentAttention& of, int line, uint8_t* to) {
  const int row = line / of.held.new_positions, width = of.held.rank + of.held.rotated;
  const int seen = of.held.lengths[row] + line % of.held.new_positions + 1;
  const HeadLines held = head_of(of.held.cache, row, 0);
  const size_t each = line_bytes(held.number, width);
  const int32_t* const selected = of.selected + static_cast<size_t>(line) * of.most;
  for (int i = 0; i < std::min(seen, of.most); i++) {
    if (selected[i] < 0 || selected[i] >= seen) throw std::out_of_range("a query cannot read this position");
    std::memcpy(to + i * each, held.slot(selected[i], width), each);
  }
}

void attend_selected(Machine& machine, const LatentAttention& of) {
  write_all(machine, of.held);
  // Its own space: the parts want the machine's.
  static thread_local Space space;
  const int lines = of.held.rows * of.held.new_positions;
  const size_t each = of.most * line_bytes(of.held.cache.number, of.held.rank + of.held.rotated);
  const int at_once = std::clamp(static_cast<int>(GATHERED_BYTES / each), 1, lines);
  uint8_t* const gathered = space.of(at_once * each);
  for (int first = 0; first < lines; first += at_once) {
    const int count = std::min(at_once, lines - first);
    machine.threads.run(count, [&](int i) { gather(of, first + i, gathered + i * each); });
    Attending(machine, GatheredSource(of, machine.with.attention, first, count, gathered)).run();
  }
}

void check(const LatentCache& of) { require_room(of.rows, of.lengths, of.new_positions, of.capacity); }

}  // namespace

void multiply_heads(Machine& machine, const HeadProducts& of) {
  const Tiles& tiles = machine.with.gemm.of(of.matrices.format);
  const int inputs = of.matrices.inputs, outputs = of.matrices.outputs, row_parts = parts(of.rows, ROWS_AT_ONCE);
  const bool is_float = of.matrices.format == Format::F32;
  const auto multiply_rows = [&](int unit) {
    static thread_local Space space;
    alignas(64) float sums[MOST_TILE_ROWS * BLOCK];
    const int head = unit % of.heads, first = unit / of.heads * ROWS_AT_ONCE;
    const int count = std::min(ROWS_AT_ONCE, of.rows - first);
    const float* const x = of.x.data + first * of.x.stride + head * of.x_head_stride;
    Operand in = {is_float ? x : nullptr, of.x.stride, {}};
    if (!is_float) {
      in.rounded = rounded(space.of(rounded_bytes(count, inputs)), count, inputs);
      for (int m = 0; m < count; m++) round_row(machine.with, x + m * of.x.stride, inputs, in.rounded.row(m));
    }
    const Matrix matrix = matrix_of(of.matrices, head);
    for (int tile = 0; tile < parts(outputs, BLOCK); tile++)
      for (int m = 0; m < count; m += tiles.most_rows) {
        const int rows = std::min(tiles.most_rows, count - m);
        Operand operand = in.row(m);
        operand.again = m > 0;
        tiles.multiply(matrix.tiles + tile * tiles.bytes(inputs), operand, inputs, rows, sums);
        for (int i = 0; i < rows; i++) {
          float* const out = of.out.data + (first + m + i) * of.out.stride + static_cast<size_t>(head) * outputs + tile * BLOCK;
          machine.with.gemm.finish(sums + i * BLOCK, std::min(BLOCK, outputs - tile * BLOCK), {Activation::NONE, nullptr, out, nullptr});
        }
      }
  };
  machine.threads.run(of.heads * row_parts, multiply_rows);
}

void latent_attention(Machine& machine, const LatentAttention& of) {
  check(of.held);
  if (of.held.rows == 0 || of.held.new_positions == 0) return;
  const int longest = *std::max_element(of.held.lengths, of.held.lengths + of.held.rows) + of.held.new_positions;
  if (of.selected != nullptr && longest > of.most)
    attend_selected(machine, of);
  else
    Attending(machine, LatentSource(of, machine.with.attention)).run();
}

void expanded_attention(Machine& machine, const ExpandedAttention& of) {
  check(of.held);
  write_all(machine, of.held);
  if (of.held.new_positions > 0)
    for (int row = 0; row < of.held.rows; row++) attend_expanded(machine, of, row);
}

}  // namespace kvcast
