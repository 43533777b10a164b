#include "delta.hpp"

#include <algorithm>
#include <cmath>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr float EPSILON = 1e-6f;  // of the lengths of queries and keys

void to_unit_length(const float* x, int count, float scale, float* out) {
  double squares = 0;
  for (int i = 0; i < count; i++) squares += static_cast<double>(x[i]) * x[i];
  const float factor = scale / std::sqrt(static_cast<float>(squares) + EPSILON);
  for (int i = 0; i < count; i++) out[i] = x[i] * factor;
}

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// Queries and keys of unit length, and the gates, of each new position of each row.
class Prepared {
 public:
  Prepared(const DeltaRule& w, float* data)
      : w_(w), data_(data), keys_(static_cast<size_t>(w.key_heads) * w.key_dim) {}

  static size_t numbers(const DeltaRule& w) { return 2 * (static_cast<size_t>(w.key_heads) * w.key_dim + w.value_heads); }

  void prepare(int line) const {
    const float* const x = w_.x.data + line * w_.x.stride;
    float* const to = query(line, 0);
    const float scale = 1 / std::sqrt(static_cast<float>(w_.key_dim));
    for (int head = 0; head < 2 * w_.key_heads; head++)
      to_unit_length(x + head * w_.key_dim, w_.key_dim, head < w_.key_heads ? scale : 1, to + head * w_.key_dim);
    for (int head = 0; head < w_.value_heads; head++) {
      const float step = w_.step.data[line * w_.step.stride + head] + w_.bias[head];
      kept(line)[head] = std::exp(-std::exp(w_.decay[head]) * softplus(step));
      share(line)[head] = 1 / (1 + std::exp(-w_.share.data[line * w_.share.stride + head]));
    }
  }

  float* query(int line, int head) const { return data_ + line * numbers(w_) + head * w_.key_dim; }
  float* key(int line, int head) const { return query(line, head) + keys_; }
  float* kept(int line) const { return query(line, 0) + 2 * keys_; }
  float* share(int line) const { return kept(line) + w_.value_heads; }

 private:
  const DeltaRule& w_;
  float* const data_;
  const size_t keys_;
};

void mix(const Instructions& with, const DeltaRule& w, const Prepared& prepared, int row, int head, int first) {
  const int line = row * w.new_positions, key_head = head / (w.value_heads / w.key_heads);
  const size_t column = static_cast<size_t>(head) * w.value_dim + first;
  DeltaColumns columns{};
  columns.positions = w.new_positions;
  columns.key_dim = w.key_dim;
  columns.columns = std::min(DELTA_COLUMNS, w.value_dim - first);
  columns.query = prepared.query(line, key_head);
  columns.key = prepared.key(line, key_head);
  columns.stride = columns.gate_stride = Prepared::numbers(w);
  columns.value = w.x.data + line * w.x.stride + 2 * static_cast<size_t>(w.key_heads) * w.key_dim + column;
  columns.value_stride = w.x.stride;
  columns.kept = prepared.kept(line) + head;
  columns.share = prepared.share(line) + head;
  columns.state = w.state + row * w.state_stride + static_cast<size_t>(head) * w.key_dim * w.value_dim + first;
  columns.state_stride = w.value_dim;
  columns.out = w.out.data + line * w.out.stride + column;
  columns.out_stride = w.out.stride;
  if (w.lengths[row] == 0)
    for (int i = 0; i < w.key_dim; i++)
      std::fill_n(columns.state + i * columns.state_stride, columns.columns, 0.0f);
  with.rows.delta(columns);
}

}  // namespace

void delta_rule(Machine& machine, const DeltaRule& w) {
  const int lines = w.rows * w.new_positions;
  const Prepared prepared(w, reinterpret_cast<float*>(machine.space.of(lines * Prepared::numbers(w) * sizeof(float))));
  for_rows(machine, lines, static_cast<int>(Prepared::numbers(w)), [&](int line) { prepared.prepare(line); });
  const int blocks = parts(w.value_dim, DELTA_COLUMNS), each = w.value_heads * blocks;
  const int numbers = w.new_positions * w.key_dim * std::min(DELTA_COLUMNS, w.value_dim);
  for_rows(machine, w.rows * each, numbers, [&](int i) {
    mix(machine.with, w, prepared, i / each, i % each / blocks, i % blocks * DELTA_COLUMNS);
  });
}

}  // namespace kvcast
