#include "convolution.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rows.hpp"

namespace kvcast {
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
