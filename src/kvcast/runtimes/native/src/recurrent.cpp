// Recurrent layers: the gated delta rule, the selective scan, and recurrences and convolutions of each channel by itself.
#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr float EPSILON = 1e-6f;  // of the lengths of queries and keys
constexpr int WORTH_PACKING = 4;  // positions: fewer do not pay for a copy of the matrix

float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// What positions share of values, and keep of matrices; of the delta rule also queries and keys of unit length. Those of
// a head lie side by side, for each is read several times.
class Prepared {
 public:
  Prepared(Machine& machine, const RewriteStates& w)
      : w_(w), rows_(machine.with.rows), lines_(w.rows * w.new_positions), corrects_(w.share.data != nullptr),
        rates_(w.value_heads) {
    const size_t shares = lines_ * w.value_heads, decays = shares * w.decays, units = corrects_ ? 2 * lines_ * keys() : 0;
    kept_ = reinterpret_cast<float*>(machine.space.of((decays + shares + units) * sizeof(float)));
    shares_ = kept_ + decays;
    units_ = shares_ + shares;
    for (int head = 0; head < w.value_heads; head++) rates_[head] = std::exp(w.decay[head]);
    if (!corrects_) return;
    const float unit = 1 / std::sqrt(static_cast<float>(w.key_dim));
    query_gain_.assign(w.key_dim, unit * unit);
    key_gain_.assign(w.key_dim, unit);
  }

  void prepare(int line, int head) const {
    const int first = head * w_.decays;
    const float* const steps = w_.step.data + line * w_.step.stride + first;
    for (int i = 0; i < w_.decays; i++) kept(line, head)[i] = std::exp(decay(head, steps[i] + w_.bias[first + i]));
    share(line, head)[0] = corrects_ ? w_.most * sigmoid(w_.share.data[line * w_.share.stride + head])
                                     : softplus(steps[0] + w_.bias[first]);
    if (!corrects_ || head >= w_.key_heads) return;
    const float* const x = w_.x.data + line * w_.x.stride;
    for (const int each : {head, w_.key_heads + head})
      rows_.rms_norm(x + each * w_.key_dim, (each == head ? query_gain_ : key_gain_).data(), EPSILON / w_.key_dim,
                     w_.key_dim, unit(line, each));
  }

  bool corrects() const { return corrects_; }
  size_t lines() const { return lines_; }
  size_t keys() const { return static_cast<size_t>(w_.key_heads) * w_.key_dim; }
  int numbers() const { return 2 * w_.key_dim + 4 + 4 * w_.decays; }  // of a head, by their time
  float* kept(int line, int head) const { return kept_ + (head * lines_ + line) * w_.decays; }
  float* share(int line, int head) const { return shares_ + head * lines_ + line; }

  const float* query(int line, int head) const {
    return corrects_ ? unit(line, head) : w_.x.data + line * w_.x.stride + head * w_.key_dim;
  }
  const float* key(int line, int head) const { return query(line, w_.key_heads + head); }
  size_t stride() const { return corrects_ ? w_.key_dim : w_.x.stride; }

 private:
  float* unit(int line, int head) const { return units_ + (head * lines_ + line) * w_.key_dim; }

  float decay(int head, float step) const {
    return w_.least < 0 ? w_.least * sigmoid(rates_[head] * step) : -rates_[head] * softplus(step);
  }

  const RewriteStates& w_;
  const Rows& rows_;
  const size_t lines_;
  const bool corrects_;
  std::vector<float> rates_, query_gain_, key_gain_;
  float *kept_, *shares_, *units_;
};

// Some columns of a head's state, in one row.
StateColumns columns_of(const RewriteStates& w, const Prepared& prepared, int row, int head, int first) {
  const int line = row * w.new_positions, key_head = head / (w.value_heads / w.key_heads);
  const size_t column = static_cast<size_t>(head) * w.value_dim + first;
  StateColumns columns{};
  columns.positions = w.new_positions;
  columns.key_dim = w.key_dim;
  columns.columns = std::min(STATE_COLUMNS, w.value_dim - first);
  columns.corrects = prepared.corrects();
  columns.by_channel = w.decays > 1;
  columns.skip = w.skip == nullptr ? 0 : w.skip[head];
  columns.query = prepared.query(line, key_head);
  columns.key = prepared.key(line, key_head);
  columns.stride = prepared.stride();
  columns.value = w.x.data + line * w.x.stride + 2 * prepared.keys() + column;
  columns.value_stride = w.x.stride;
  columns.kept = prepared.kept(line, head);
  columns.share = prepared.share(line, head);
  columns.state = w.state + row * w.state_stride + static_cast<size_t>(head) * w.key_dim * w.value_dim + first;
  columns.state_stride = w.value_dim;
  columns.out = w.out.data + line * w.out.stride + column;
  columns.out_stride = w.out.stride;
  return columns;
}

void copy(const float* from, size_t stride, float* to, size_t to_stride, const StateColumns& of) {
  for (int i = 0; i < of.key_dim; i++) std::copy_n(from + i * stride, of.columns, to + i * to_stride);
}

// Lines of a matrix lie where few of them fit into the first cache, so that many positions read them of a copy.
void rewrite_packed(const Rows& rows, StateColumns columns) {
  thread_local Space space;
  float* const state = columns.state;
  const size_t stride = columns.state_stride;
  columns.state = reinterpret_cast<float*>(space.of(static_cast<size_t>(columns.key_dim) * STATE_COLUMNS * sizeof(float)));
  columns.state_stride = STATE_COLUMNS;
  copy(state, stride, columns.state, STATE_COLUMNS, columns);
  rows.state(columns);
  copy(columns.state, STATE_COLUMNS, state, stride, columns);
}

void rewrite(const Rows& rows, const StateColumns& columns, bool is_new) {
  if (is_new)
    for (int i = 0; i < columns.key_dim; i++)
      std::fill_n(columns.state + i * columns.state_stride, columns.columns, 0.0f);
  if (columns.positions < WORTH_PACKING)
    rows.state(columns);
  else
    rewrite_packed(rows, columns);
}

}  // namespace

void rewrite_states(Machine& machine, const RewriteStates& w) {
  const Prepared prepared(machine, w);
  for_rows(machine, static_cast<int>(prepared.lines()) * w.value_heads, prepared.numbers(),
           [&](int i) { prepared.prepare(i / w.value_heads, i % w.value_heads); });
  const int blocks = parts(w.value_dim, STATE_COLUMNS), each = w.value_heads * blocks;
  const int numbers = w.new_positions * w.key_dim * std::min(STATE_COLUMNS, w.value_dim);
  for_rows(machine, w.rows * each, numbers, [&](int i) {
    const int row = i / each, block = i % each;
    const StateColumns columns = columns_of(w, prepared, row, block / blocks, block % blocks * STATE_COLUMNS);
    rewrite(machine.with.rows, columns, w.lengths[row] == 0);
  });
}

void gated_recurrence(Machine& machine, const GatedRecurrence& w) {
  for_rows(machine, w.rows, w.new_positions * w.width, [&](int row) {
    float* const state = w.state + row * w.state_stride;
    if (w.lengths[row] == 0) std::fill_n(state, w.width, 0.0f);
    for (int line = row * w.new_positions; line < (row + 1) * w.new_positions; line++) {
      const float *const x = w.x.data + line * w.x.stride, *const gate = w.gate.data + line * w.gate.stride;
      for (int c = 0; c < w.width; c++) {
        const float kept = sigmoid(gate[c]);
        state[c] = kept * state[c] + (1 - kept) * x[c];
      }
      std::copy_n(state, w.width, w.out.data + line * w.out.stride);
    }
  });
}

namespace {

constexpr int CHANNELS = 256;  // at once
const std::vector<float> ONES(CHANNELS, 1.0f);

// One row.
class Row {
 public:
  Row(const ShortConvolution& w, int row)
      : w_(w), held_(w.lengths[row]), x_(w.x.data + row * w.new_positions * w.x.stride),
        past_(w.past + row * w.past_stride), out_(w.out.data + row * w.new_positions * w.out.stride) {}

  void mix(const Rows& with, int s) const {
    thread_local std::vector<const float*> inputs;
    inputs.clear();
    for (int64_t position = std::max<int64_t>(0, held_ + s + 1 - w_.length); position <= held_ + s; position++)
      inputs.push_back(position < held_ ? slot(position) : x_ + (position - held_) * w_.x.stride);
    const int length = static_cast<int>(inputs.size());
    const float* const kernel = w_.kernel + static_cast<size_t>(w_.length - length) * w_.width;
    for (int c = 0; c < w_.width; c += CHANNELS) {
      const int count = std::min(CHANNELS, w_.width - c);
      float* const out = out_ + s * w_.out.stride + c;
      with.convolve(inputs.data(), length, kernel + c, w_.width, w_.bias ? w_.bias + c : nullptr, count, out);
      if (w_.activation != Activation::NONE) with.gate(w_.activation, out, ONES.data(), count, out);
      for (const float*& input : inputs) input += count;
    }
  }

  // Once all are mixed.
  void keep() const {
    for (int s = std::max(0, w_.new_positions - w_.slots); s < w_.new_positions; s++)
      std::memcpy(slot(held_ + s), x_ + s * w_.x.stride, w_.width * sizeof(float));
  }

 private:
  float* slot(int64_t position) const { return past_ + position % w_.slots * w_.width; }

  const ShortConvolution& w_;
  const int64_t held_;
  const float* const x_;
  float* const past_;
  float* const out_;
};

// A position of the results, all bands of it.
void convolve(const Rows& rows, const ChannelConvolution& w, int input, int position, float* out) {
  const int bands = parts(w.bands, w.stride);
  const size_t channels = w.channels, of_x = w.shared ? 1 : channels;
  for (int band = 0; band < bands; band++, out += channels) {
    std::memcpy(out, w.bias, channels * sizeof(float));
    for (int i = 0; i < w.length; i++) {
      const int t = position * w.stride + i - w.length / 2;
      if (t < 0 || t >= w.positions) continue;
      for (int j = 0; j < w.breadth; j++) {
        const int f = band * w.stride + j - w.breadth / 2;
        if (f < 0 || f >= w.bands) continue;
        const float* const x = w.x + ((static_cast<size_t>(input) * w.positions + t) * w.bands + f) * of_x;
        const float* const factors = w.kernel + (static_cast<size_t>(i) * w.breadth + j) * channels;
        if (w.shared)
          for (size_t c = 0; c < channels; c++) out[c] += factors[c] * *x;
        else
          for (size_t c = 0; c < channels; c++) out[c] += factors[c] * x[c];
      }
    }
    if (w.activation == Activation::NONE) continue;
    for (size_t c = 0; c < channels; c += CHANNELS) {
      const int count = static_cast<int>(std::min<size_t>(CHANNELS, channels - c));
      rows.gate(w.activation, out + c, ONES.data(), count, out + c);
    }
  }
}

}  // namespace

void short_convolution(Machine& machine, const ShortConvolution& w) {
  for_rows(machine, w.rows * w.new_positions, w.length * w.width, [&](int line) {
    Row(w, line / w.new_positions).mix(machine.with.rows, line % w.new_positions);
  });
  for_rows(machine, w.rows, std::min(w.slots, w.new_positions) * w.width, [&](int row) { Row(w, row).keep(); });
}

void channel_convolution(Machine& machine, const ChannelConvolution& w) {
  const int positions = parts(w.positions, w.stride), bands = parts(w.bands, w.stride);
  const size_t each = static_cast<size_t>(bands) * w.channels;
  for_rows(machine, w.inputs * positions, static_cast<int>(each) * w.length * w.breadth, [&](int i) {
    convolve(machine.with.rows, w, i / positions, i % positions, w.out + i * each);
  });
}

}  // namespace kvcast
