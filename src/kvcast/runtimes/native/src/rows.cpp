#include "rows.hpp"

#include <vector>

namespace kvcast {
namespace {

// Calls work(m, row) for each row m, where `row` is the row's place in out, or one that is kept for the
// thread; then rounds it.
template <class Work>
void write_rows(Machine& machine, const RowRange& of, Work&& work) {
  for_rows(machine, of.rows, of.width, [&](int m) {
    thread_local std::vector<float> space;
    if (of.out == nullptr && space.size() < static_cast<size_t>(of.width)) space.resize(of.width);
    float* row = of.out ? of.out + m * of.out_stride : space.data();
    work(m, row);
    if (of.to) round_row(machine.with, row, of.width, of.to->row(m));
  });
}

}  // namespace

void round_row(const Instructions& with, const float* x, int width, const Rounded& to) {
  for (int i = 0; i < width; i += BLOCK)
    with.gemm.round(x + i, std::min(BLOCK, width - i), to.block(i / BLOCK));
}

void layer_norm(Machine& machine, const RowRange& of, const float* gain, const float* bias, float epsilon) {
  write_rows(machine, of, [&](int m, float* row) {
    machine.with.rows.layer_norm(of.x + m * of.stride, gain, bias, epsilon, of.width, row);
  });
}

void rms_norm(Machine& machine, const RowRange& of, const float* gain, float epsilon) {
  write_rows(machine, of, [&](int m, float* row) {
    machine.with.rows.rms_norm(of.x + m * of.stride, gain, epsilon, of.width, row);
  });
}

void gated(Machine& machine, const RowRange& gate, const float* up, size_t up_stride, Activation activation) {
  write_rows(machine, gate, [&](int m, float* row) {
    machine.with.rows.gate(activation, gate.x + m * gate.stride, up + m * up_stride, gate.width, row);
  });
}

}  // namespace kvcast
