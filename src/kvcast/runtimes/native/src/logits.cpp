#include "logits.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "machine.hpp"

namespace kvcast {
namespace {

constexpr float LOG2_E = 1.44269504f;

struct Candidate {
  float logit;
  int32_t token;
  float weight;
};

bool better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// A little less than a logit that was computed in another order.
float below(float logit, float most) { return logit - 1e-5f * (std::fabs(logit) + std::fabs(most)); }

// A point of a sum at a share of it. Rounding must not carry it to the very end, past the last token that has any weight.
double inside(double share, double sum) { return std::min(share * sum, std::nextafter(sum, 0)); }

// A row and the greatest of each column of its panels. Buffers are kept from row to row.
class Row {
 public:
  explicit Row(const Instructions& with) : kernels_(with.scores) {}

  void read(const float* x, int count) {
    x_ = x;
    count_ = count;
    const size_t columns = parts(count, PANEL) * static_cast<size_t>(PANEL_COLUMNS);
    peaks_.resize(columns);
    sums_.resize(columns);
    sound_ = kernels_.peaks(x, count, peaks_.data());
    most_ = count > 0 ? *std::max_element(peaks_.begin(), peaks_.end()) : -INFINITY;
  }

  bool sound() const { return sound_; }
  float most() const { return most_; }

  // The sum of weights, for a row whose maximum is finite.
  double sum(float factor) {
    kernels_.sums(x_, peaks_.data(), count_, most_, factor, sums_.data());
    double total = 0;
    panels_.clear();
    for (auto column = sums_.begin(); column != sums_.end(); column += PANEL_COLUMNS) {
      panels_.push_back(std::accumulate(column, column + PANEL_COLUMNS, 0.0));
      total += panels_.back();
    }
    return total;
  }

  float log_sum() {
    if (!sound_) return NAN;
    return std::isfinite(most_) ? static_cast<float>(most_ + std::log(sum(LOG2_E))) : most_;
  }

  // Tokens requested last.
  std::vector<Candidate>& candidates() { return candidates_; }

  // Takes all tokens whose logits are `least` or more, in no order.
  void take_from(float least) {
    candidates_.clear();
    for (int column = 0; column < static_cast<int>(peaks_.size()); column++) {
      if (!(peaks_[column] >= least)) continue;
      const int first = column / PANEL_COLUMNS * PANEL, end = std::min(first + PANEL, count_);
      for (int i = first + column % PANEL_COLUMNS; i < end; i += PANEL_COLUMNS)
        if (x_[i] >= least) candidates_.push_back({x_[i], i, 0});
    }
  }

  // Takes the k likeliest, k up to the row's numbers, best first, and then those that are as likely as the last of them.
  void take_top(int k) {
    take_from(bound(k));
    const auto begin = candidates_.begin(), end = begin + k;
    std::nth_element(begin, end - 1, candidates_.end(), better);
    const float least = end[-1].logit;
    candidates_.erase(std::partition(end, candidates_.end(), [=](const Candidate& each) { return each.logit == least; }),
                      candidates_.end());
    std::sort(begin, candidates_.end(), better);
  }

  // The token at a share of the row's sum.
  int64_t at(double share, float factor) {
    const double point = inside(share, sum(factor));
    double before = 0;
    size_t panel = 0;
    while (before + panels_[panel] <= point) before += panels_[panel++];
    // A panel's values may not add up exactly to its sum: then it is the next.
    int64_t last = -1;
    for (int first = static_cast<int>(panel) * PANEL; first < count_; first += PANEL) {
      const int here = std::min(PANEL, count_ - first);
      const float* weights = weigh(x_ + first, here, factor);
      for (int i = 0; i < here; i++) {
        if (weights[i] == 0) continue;
        last = first + i;
        if ((before += weights[i]) > point) return last;
      }
    }
    return last;
  }

  // Fills the candidates' weights; returns their sum.
  double weigh(float factor) {
    logits_.clear();
    for (const Candidate& each : candidates_) logits_.push_back(each.logit);
    const float* weights = weigh(logits_.data(), static_cast<int>(logits_.size()), factor);
    double total = 0;
    for (Candidate& each : candidates_) total += each.weight = *weights++;
    return total;
  }

 private:
  // The weights of values, until the next call.
  const float* weigh(const float* x, int count, float factor) {
    weights_.resize(static_cast<size_t>(parts(count, PANEL_COLUMNS)) * PANEL_COLUMNS);
    kernels_.weights(x, count, most_, factor, weights_.data());
    return weights_.data();
  }

  // At most the k-th greatest: k columns, or groups of them, have numbers that are no less.
  float bound(int k) {
    if (k == 1) return most_;
    if (static_cast<size_t>(k) > peaks_.size()) return -INFINITY;
    groups_ = peaks_;
    while (groups_.size() >= 8 * static_cast<size_t>(k)) {
      const size_t rest = groups_.size() / 2, half = groups_.size() - rest;
      for (size_t i = 0; i < rest; i++) groups_[i] = std::max(groups_[i], groups_[half + i]);
      groups_.resize(half);
    }
    std::nth_element(groups_.begin(), groups_.begin() + k - 1, groups_.end(), std::greater<float>());
    return groups_[k - 1];
  }

  const Scores& kernels_;
  const float* x_ = nullptr;
  int count_ = 0;
  bool sound_ = false;
  float most_ = 0;
  std::vector<float> peaks_, sums_, groups_, logits_, weights_;
  std::vector<double> panels_;
  std::vector<Candidate> candidates_;
};

// Leaves the likeliest candidates, as few as reach a sum.
void keep_nucleus(std::vector<Candidate>& all, double sum) {
  // Those before `begin` belong to it and reach less, those from `end` on do not belong to it.
  auto begin = all.begin(), end = all.end();
  double reached = 0;
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, better);
    double with_middle = reached;
    for (auto each = begin; each != middle; ++each) with_middle += each->weight;
    if (with_middle < sum) {
      begin = middle;
      reached = with_middle;
    } else {
      end = middle;
    }
  }
  all.erase(end, all.end());
}

// Takes the tokens that top-k and top-p leave, and perhaps some that min-p does not.
void take_likely(Row& row, int vocab, const Sampling& of, float factor) {
  double total = 0;
  if (of.top_k > 0) {
    row.take_top(std::min(of.top_k, vocab));
    total = row.weigh(factor);
  } else if (of.top_p < 1) {
    total = row.sum(factor);
    // The likeliest that reach p are among the tokens above a bound, once these do; mostly few. Below the last one, 2^-128,
    // nothing weighs anything.
    float bound = -2;
    do {
      bound *= 2;
      row.take_from(row.most() + bound / factor);
    } while (row.weigh(factor) < of.top_p * total && bound > -128);
  } else {
    row.take_from(below(row.most() + of.temperature * std::log(static_cast<float>(of.min_p)), row.most()));
  }
  if (of.top_p < 1) keep_nucleus(row.candidates(), of.top_p * total);
}

}  // namespace

void likeliest(const Instructions& with, const LogitRows& rows, int k, bool sums, Word* out) {
  Row row(with);
  for (int r = 0; r < rows.rows; r++, out += 2 * k + 1) {
    row.read(rows.row(r), rows.vocab);
    if (k > 0 && row.sound()) row.take_top(k);
    for (int i = 0; i < k; i++) {
      const Candidate best = row.sound() ? row.candidates()[i] : Candidate{NAN, i, 0};
      out[i].token = best.token;
      out[k + i].number = best.logit;
    }
    out[2 * k].number = sums ? row.log_sum() : NAN;
  }
}

int64_t draw(const Instructions& with, const float* logits, int vocab, const Sampling& of, double number) {
  Row row(with);
  row.read(logits, vocab);
  if (!row.sound() || !std::isfinite(row.most())) return -1;
  const float factor = LOG2_E / of.temperature;
  if (of.top_k == 0 && of.top_p == 1 && of.min_p == 0) return row.at(number, factor);
  take_likely(row, vocab, of, factor);
  auto& all = row.candidates();
  if (of.min_p > 0) {
    const float least = std::log(static_cast<float>(of.min_p));
    const auto unlikely = [&](const Candidate& each) { return (each.logit - row.most()) / of.temperature < least; };
    all.erase(std::remove_if(all.begin(), all.end(), unlikely), all.end());
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  const double point = inside(number, row.weigh(factor));
  double before = 0;
  for (const Candidate& each : all)
    if ((before += each.weight) > point) return each.token;
  return -1;
}

void penalise(const LogitRows& rows, const int64_t* tokens, size_t stride, int count, const Penalties& of) {
  thread_local std::vector<int32_t> counts;  // zeros between calls
  if (counts.size() < static_cast<size_t>(rows.vocab)) counts.resize(rows.vocab);
  for (int r = 0; r < rows.rows; r++, tokens += stride) {
    const auto known = [&](int i) { return 0 <= tokens[i] && tokens[i] < rows.vocab; };
    for (int i = 0; i < count; i++)
      if (known(i)) counts[tokens[i]]++;
    for (int i = 0; i < count; i++) {
      if (!known(i) || counts[tokens[i]] == 0) continue;
      float& logit = rows.row(r)[tokens[i]];
      if (of.repetition != 1) logit = logit < 0 ? logit * of.repetition : logit / of.repetition;
      logit -= static_cast<float>(of.presence + of.frequency * counts[tokens[i]]);
      counts[tokens[i]] = 0;
    }
  }
}

void apply_timestamp_rules(const Instructions& with, const LogitRows& rows, const int64_t* written, size_t stride,
                           int count, const TimestampRules& of) {
  Row timestamps(with), before(with), after(with);
  const auto is_timestamp = [&](int i) { return of.begin <= written[i] && written[i] < of.end; };
  for (int r = 0; r < rows.rows; r++, written += stride) {
    float* x = rows.row(r);
    const auto never = [&](int64_t first, int64_t last) { std::fill(x + first, x + std::max(first, last), -INFINITY); };
    never(of.no_timestamps, of.no_timestamps + 1);
    int at = count - 1;
    while (at >= 0 && !is_timestamp(at)) at--;
    if (at >= 0) {
      const bool ends = at == count - 1, opening = ends && (at == 0 || is_timestamp(at - 1)), closing = ends && !opening;
      if (opening) never(of.begin, of.end);  // text must follow
      if (closing) never(0, of.end_of_text), never(of.end, rows.vocab);
      never(of.begin, closing ? written[at] : written[at] + 1);
    }
    timestamps.read(x + of.begin, of.end - of.begin);
    before.read(x, of.begin);
    after.read(x + of.end, rows.vocab - of.end);
    if (!timestamps.sound() || !before.sound() || !after.sound()) continue;
    if (timestamps.log_sum() > std::max(before.most(), after.most())) never(0, of.begin), never(of.end, rows.vocab);
  }
}

}  // namespace kvcast
