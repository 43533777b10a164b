#include "rows.hpp"

#include <vector>

namespace kvcast {
namespace {

// Calls work(m, row) for each row, where `row` is the row's place in out, or one that is kept for the
// thread; then rounds it.
template <class Work>
void write_rows(Machine& machine, int rows, int width, float* out, size_t stride, const Rounded* to, Work&& work) {
  for_rows(machine, rows, width, [&](int m) {
    thread_local std::vector<float> space;
    if (out == nullptr && space.size() < static_cast<size_t>(width)) space.resize(width);
    float* row = out ? out + m * stride : space.data();
    work(m, row);
    if (to) round_row(machine.with, row, width, to->row(m));
  });
}

}  // namespace

void round_row(const Instructions& with, const float* x, int width, const Rounded& to) {
  for (int i = 0; i < width; i += BLOCK)
    with.products.round(x + i, std::min(BLOCK, width - i), to.block(i / BLOCK));
}

void layer_norm(Machine& machine, const float* x, size_t stride, int rows, int width, const float* gain,
                const float* bias, float epsilon, float* out, size_t out_stride, const Rounded* to) {
  write_rows(machine, rows, width, out, out_stride, to, [&](int m, float* row) {
    machine.with.rows.layer_norm(x + m * stride, gain, bias, epsilon, width, row);
  });
}

void rms_norm(Machine& machine, const float* x, size_t stride, int rows, int width, const float* gain, float epsilon,
              float* out, size_t out_stride, const Rounded* to) {
  write_rows(machine, rows, width, out, out_stride, to, [&](int m, float* row) {
    machine.with.rows.rms_norm(x + m * stride, gain, epsilon, width, row);
  });
}

void gated(Machine& machine, const float* gate, const float* up, size_t stride, int rows, int width,
           Activation activation, float* out, size_t out_stride, const Rounded* to) {
  write_rows(machine, rows, width, out, out_stride, to, [&](int m, float* row) {
    machine.with.rows.gate(activation, gate + m * stride, up + m * stride, width, row);
  });
}

}  // namespace kvcast
