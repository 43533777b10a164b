#include "convolution.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int CHANNELS = 256;  // of a tile
const std::vector<float> ONES(CHANNELS, 1.0f);

// The channels of a tile, in one row.
class Tile {
 public:
  Tile(const Rows& rows, const ShortConvolution& w, int row, int first)
      : rows_(rows), w_(w), held_(w.lengths[row]), first_(first), count_(std::min(CHANNELS, w.width - first)),
        x_(w.x.data + row * w.new_positions * w.x.stride + first),
        past_(w.past + row * w.past_stride + first),
        out_(w.out.data + row * w.new_positions * w.out.stride + first) {}

  void run() const {
    for (int s = 0; s < w_.new_positions; s++) mix(s);
    for (int s = std::max(0, w_.new_positions - w_.slots); s < w_.new_positions; s++)
      std::memcpy(slot(held_ + s), x_ + s * w_.x.stride, count_ * sizeof(float));
  }

 private:
  float* slot(int64_t position) const { return past_ + position % w_.slots * w_.width; }

  void mix(int s) const {
    float* const out = out_ + s * w_.out.stride;
    if (w_.bias != nullptr)
      std::memcpy(out, w_.bias + first_, count_ * sizeof(float));
    else
      std::fill(out, out + count_, 0.0f);
    for (int i = 0; i < w_.length; i++) {
      const int64_t position = held_ + s - (w_.length - 1) + i;
      if (position < 0) continue;
      const float* const x = position < held_ ? slot(position) : x_ + (position - held_) * w_.x.stride;
      const float* const factors = w_.kernel + static_cast<size_t>(i) * w_.width + first_;
      for (int c = 0; c < count_; c++) out[c] += factors[c] * x[c];
    }
    if (w_.activation != Activation::NONE) rows_.gate(w_.activation, out, ONES.data(), count_, out);
  }

  const Rows& rows_;
  const ShortConvolution& w_;
  const int64_t held_;
  const int first_, count_;
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
  const int tiles = parts(w.width, CHANNELS);
  for_rows(machine, w.rows * tiles, w.new_positions * w.length * std::min(CHANNELS, w.width),
           [&](int i) { Tile(machine.with.rows, w, i / tiles, i % tiles * CHANNELS).run(); });
}

void channel_convolution(Machine& machine, const ChannelConvolution& w) {
  const int positions = parts(w.positions, w.stride), bands = parts(w.bands, w.stride);
  const size_t each = static_cast<size_t>(bands) * w.channels;
  for_rows(machine, w.inputs * positions, static_cast<int>(each) * w.length * w.breadth, [&](int i) {
    convolve(machine.with.rows, w, i / positions, i % positions, w.out + i * each);
  });
}

}  // namespace kvcast
