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

}  // namespace

void short_convolution(Machine& machine, const ShortConvolution& w) {
  const int tiles = parts(w.width, CHANNELS);
  for_rows(machine, w.rows * tiles, w.new_positions * w.length * std::min(CHANNELS, w.width),
           [&](int i) { Tile(machine.with.rows, w, i / tiles, i % tiles * CHANNELS).run(); });
}

}  // namespace kvcast
