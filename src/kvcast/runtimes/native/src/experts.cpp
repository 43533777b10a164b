#include "program.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "rows.hpp"

namespace kvcast {
namespace {

// A token's experts, in the order in which they are chosen, and their shares.
class Choice {
 public:
  explicit Choice(const Mixture& of)
      : of_(of), by_(of.routing), of_group_(of.experts / by_.groups), ranks_(of.experts), taken_(of.experts) {}

  void operator()(const float* logits, int* chosen, float* shares) {
    rank(logits);
    if (by_.groups_each < by_.groups) keep_best_groups();
    take_best(ranks_.data(), of_.experts, of_.each, chosen);
    weigh(logits, chosen, shares);
  }

 private:
  // Logits are in the order of scores, where nothing is added to these.
  void rank(const float* logits) {
    std::copy_n(logits, of_.experts, ranks_.begin());
    if (by_.bias == nullptr && by_.groups_each == by_.groups) return;
    const float most = *std::max_element(logits, logits + of_.experts);
    float total = 0;
    for (float& rank : ranks_) {
      rank = by_.sigmoid ? sigmoid(rank) : std::exp(rank - most);
      total += rank;
    }
    for (int i = 0; i < of_.experts; i++) {
      if (!by_.sigmoid) ranks_[i] /= total;
      if (by_.bias != nullptr) ranks_[i] += by_.bias[i];
    }
  }

  void keep_best_groups() {
    std::vector<float> scores(by_.groups);
    std::vector<int> best(std::max(by_.best, by_.groups_each));
    for (int group = 0; group < by_.groups; group++) {
      const float* const ranks = &ranks_[group * of_group_];
      take_best(ranks, of_group_, by_.best, best.data());
      for (int i = 0; i < by_.best; i++) scores[group] += ranks[best[i]];
    }
    take_best(scores.data(), by_.groups, by_.groups_each, best.data());
    for (int group = 0; group < by_.groups; group++) {
      const auto first = ranks_.begin() + group * of_group_;
      if (!taken_[group]) std::fill(first, first + of_group_, -INFINITY);
    }
  }

  void take_best(const float* values, int count, int wanted, int* found) {
    std::fill(taken_.begin(), taken_.end(), 0);
    for (int i = 0; i < wanted; i++) {
      int best = -1;
      for (int j = 0; j < count; j++)
        if (!taken_[j] && (best < 0 || values[j] > values[best])) best = j;
      taken_[best] = 1;
      found[i] = best;
    }
  }

  void weigh(const float* logits, const int* chosen, float* shares) const {
    float most = logits[chosen[0]], total = 0;
    for (int i = 0; i < of_.each; i++) most = std::max(most, logits[chosen[i]]);
    if (!by_.normalised) most = *std::max_element(logits, logits + of_.experts);
    for (int i = 0; i < of_.each; i++) {
      const float logit = logits[chosen[i]];
      shares[i] = by_.sigmoid ? sigmoid(logit) : std::exp(logit - most);
      total += shares[i];
    }
    if (by_.sigmoid) {
      total = by_.normalised ? total + by_.epsilon : 1;
    } else if (!by_.normalised) {
      total = 0;
      for (int expert = 0; expert < of_.experts; expert++) total += std::exp(logits[expert] - most);
    }
    for (int i = 0; i < of_.each; i++) shares[i] *= by_.scale * (by_.scales ? by_.scales[chosen[i]] : 1) / total;
  }

  static float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

  const Mixture& of_;
  const Routing& by_;
  const int of_group_;
  std::vector<float> ranks_;
  std::vector<char> taken_;  // of the last that were to choose from
};

// Which experts tokens go through. A token has a line for each of them; lines are sorted by expert.
struct Routes {
  std::vector<int> first;        // [experts + 1]: where each expert's lines begin
  std::vector<int> token;        // [lines]
  std::vector<int> line;         // [tokens, each], from the one chosen first on
  std::vector<int> chosen;       // likewise
  std::vector<float> share;      // [tokens, each]
  int most = 0;                  // lines of an expert

  explicit Routes(const Mixture& of)
      : first(of.experts + 1), token(of.tokens * of.each), line(token.size()), chosen(token.size()), share(token.size()) {
    Choice choose(of);
    for (int t = 0; t < of.tokens; t++) choose(of.logits + t * of.logits_stride, &chosen[t * of.each], &share[t * of.each]);
    for (int expert : chosen) first[expert + 1]++;
    most = *std::max_element(first.begin(), first.end());
    for (int expert = 0; expert < of.experts; expert++) first[expert + 1] += first[expert];
    std::vector<int> next(first.begin(), first.end() - 1);
    for (size_t i = 0; i < chosen.size(); i++) {
      line[i] = next[chosen[i]]++;
      token[line[i]] = static_cast<int>(i) / of.each;
    }
  }
};

// Places of one kind after another, for lines as floats or rounded.
class LineBuffer {
 public:
  LineBuffer(Format format, int count, int width) : width_(width), is_float_(format == Format::F32) {
    const size_t floats = static_cast<size_t>(count) * width * sizeof(float);
    bytes = is_float_ ? (floats + 63) / 64 * 64 : rounded_bytes(count, width);
    count_ = count;
  }

  void place(uint8_t* data) {
    if (is_float_)
      floats_ = reinterpret_cast<float*>(data);
    else
      rounded_ = rounded(data, count_, width_);
  }

  float* floats(int line) const { return is_float_ ? floats_ + static_cast<size_t>(line) * width_ : nullptr; }
  Rounded codes(int line) const { return is_float_ ? Rounded{} : rounded_.row(line); }

  size_t bytes;

 private:
  int width_, count_;
  bool is_float_;
  float* floats_ = nullptr;
  Rounded rounded_{};
};

void copy_row(const Rounded& from, const Rounded& to) {
  std::memcpy(to.codes, from.codes, from.inputs);
  std::memcpy(to.scales, from.scales, from.inputs / BLOCK * sizeof(float));
  std::memcpy(to.offsets, from.offsets, from.inputs / GROUP * sizeof(int32_t));
  std::memcpy(to.fine, from.fine, from.inputs / FINE * sizeof(int32_t));
}

void product(Machine& machine, const Matrix& matrix, int rows, const LineBuffer& in, int first, float* out) {
  Product call{};
  call.matrix = matrix;
  call.rows = rows;
  call.x = in.floats(first);
  call.stride = matrix.inputs;
  call.in = in.codes(first);
  call.activation = Activation::NONE;
  call.out = out;
  call.out_stride = matrix.outputs;
  multiply(machine, call);
}

// Biases, and what becomes a clamped gate once SiLU is applied: x sigmoid(alpha x) (y + 1) is
// silu(alpha x) (y + 1) / alpha.
void prepare_gates(Machine& machine, const Mixture& of, int expert, int count, float* hidden) {
  const int inner = of.down.inputs;
  const float* const bias = of.gate_up_bias ? of.gate_up_bias + static_cast<size_t>(expert) * 2 * inner : nullptr;
  if (bias == nullptr && of.limit == 0) return;
  for_rows(machine, count, 2 * inner, [&](int row) {
    float *const gate = hidden + static_cast<size_t>(row) * 2 * inner, *const up = gate + inner;
    if (bias != nullptr)
      for (int i = 0; i < 2 * inner; i++) gate[i] += bias[i];
    if (of.limit == 0) return;
    for (int i = 0; i < inner; i++) {
      gate[i] = of.alpha * std::min(gate[i], of.limit);
      up[i] = (std::min(std::max(up[i], -of.limit), of.limit) + 1) / of.alpha;
    }
  });
}

}  // namespace

void mix_experts(Machine& machine, const Mixture& of) {
  if (of.tokens == 0) return;
  const Routes routes(of);
  const int lines = of.tokens * of.each, width = of.gate_up.inputs, inner = of.down.inputs;
  const size_t hidden_bytes = (static_cast<size_t>(routes.most) * 2 * inner * sizeof(float) + 63) / 64 * 64;
  LineBuffer in(of.gate_up.format, lines, width), gated_lines(of.down.format, routes.most, inner);
  LineBuffer answers(Format::F32, lines, width);
  uint8_t* space = machine.space.of(hidden_bytes + in.bytes + gated_lines.bytes + answers.bytes);
  float* hidden = reinterpret_cast<float*>(space);
  in.place(space += hidden_bytes);
  gated_lines.place(space += in.bytes);
  answers.place(space += gated_lines.bytes);
  for_rows(machine, lines, width, [&](int line) {
    const int token = routes.token[line];
    if (of.x)
      std::memcpy(in.floats(line), of.x + token * of.stride, width * sizeof(float));
    else
      copy_row(of.in.row(token), in.codes(line));
  });
  for (int expert = 0; expert < of.experts; expert++) {
    const int first = routes.first[expert], count = routes.first[expert + 1] - first;
    if (count == 0) continue;
    product(machine, matrix_of(of.gate_up, expert), count, in, first, hidden);
    prepare_gates(machine, of, expert, count, hidden);
    const Rounded codes = gated_lines.codes(0);
    float* floats = gated_lines.floats(0);
    const size_t stride = 2 * static_cast<size_t>(inner), out_stride = inner;
    const RowRange gate = {hidden, stride, count, inner, floats, out_stride, floats ? nullptr : &codes};
    gated(machine, gate, hidden + inner, stride, of.activation);
    product(machine, matrix_of(of.down, expert), count, gated_lines, 0, answers.floats(first));
  }
  for_rows(machine, of.tokens, width, [&](int token) {
    float* out = of.out + token * of.out_stride;
    std::fill(out, out + width, 0.f);
    for (int i = token * of.each; i < (token + 1) * of.each; i++) {
      const float *answer = answers.floats(routes.line[i]), share = routes.share[i];
      for (int j = 0; j < width; j++) out[j] += share * answer[j];
      if (of.down_bias == nullptr) continue;
      const float* const bias = of.down_bias + static_cast<size_t>(routes.chosen[i]) * width;
      for (int j = 0; j < width; j++) out[j] += share * bias[j];
    }
  });
}

}  // namespace kvcast
