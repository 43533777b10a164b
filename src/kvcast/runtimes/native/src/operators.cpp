#include "operators.hpp"

#include <climits>
#include <exception>
#include <memory>

#include "machine.hpp"
#include "program.hpp"
#include "gemm.hpp"

namespace kvcast {
namespace {

static_assert(sizeof(void*) != 8 || sizeof(kvcast_matrix) == 8 * sizeof(int64_t));

// The machine of a thread's calls, kept for its working space.
struct Caller {
  Machine machine;
  Space inputs;

  Caller(const Instructions& with, const Lent& lent) : machine{with, Threads(lent), {}} {}

  // Rows as a product with the matrix reads them.
  Operand operand(Format format, int inputs_each, const float* x, size_t stride, int rows) {
    if (format == Format::F32) return {x, stride, {}};
    const Rounded to = rounded(inputs.of(rounded_bytes(rows, inputs_each)), rows, inputs_each);
    round_rows(machine, x, stride, rows, inputs_each, to);
    return {nullptr, 0, to};
  }
};

Caller& caller(const Instructions& with, const Lent& lent) {
  thread_local std::unique_ptr<Caller> kept;
  thread_local Lent of{0, nullptr};
  if (!kept || &kept->machine.with != &with || of.count != lent.count || of.on_each != lent.on_each) {
    kept.reset(new Caller(with, lent));
    of = lent;
  }
  return *kept;
}

Matrix described(const kvcast_matrix& matrix) {
  return {static_cast<Format>(matrix.format), static_cast<int>(matrix.outputs), static_cast<int>(matrix.inputs),
          static_cast<const uint8_t*>(matrix.tiles)};
}

Stack stack(const kvcast_matrix& matrix) {
  const Matrix all = described(matrix);
  return {all.format, all.outputs, all.inputs, static_cast<const int64_t*>(matrix.tiles)};
}

// 1 if `work` throws: no exception goes through code that others compiled.
template <class Work>
int without_exceptions(Work&& work) {
  const Environment environment;
  try {
    work();
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

int multiply_packed(const kvcast_matrix* matrix, const float* x, int64_t stride, int64_t rows, float* out,
                    const Lent* lent) {
  if (rows < 0 || rows > INT_MAX) return 1;
  return without_exceptions([&] {
    Caller& with = caller(*matrix->with, *lent);
    Product product{};
    product.matrix = described(*matrix);
    product.rows = static_cast<int>(rows);
    const Operand in = with.operand(product.matrix.format, product.matrix.inputs, x, stride, product.rows);
    product.x = in.x;
    product.stride = in.stride;
    product.in = in.rounded;
    product.activation = Activation::NONE;
    product.out = out;
    product.out_stride = product.matrix.outputs;
    multiply(with.machine, product);
  });
}

int look_up(const kvcast_matrix* matrix, const int64_t* ids, int64_t count, float* out) {
  const Matrix table = described(*matrix);
  for (int64_t i = 0; i < count; i++)
    if (ids[i] < 0 || ids[i] >= table.outputs) return 1;
  return without_exceptions([&] {
    for (int64_t i = 0; i < count; i++)
      unpack_row(*matrix->with, table, static_cast<int>(ids[i]), out + i * table.inputs);
  });
}

int mix(const kvcast_matrix* gate_up, const kvcast_matrix* down, const float* x, int64_t stride, int64_t rows,
        const float* logits, int64_t logits_stride, int64_t each, float* out, const Lent* lent) {
  const bool fits = gate_up->count == down->count && gate_up->inputs == down->outputs &&
                    gate_up->outputs == 2 * down->inputs && each >= 1 && each <= gate_up->count;
  if (!fits || rows < 0 || rows > INT_MAX / each) return 1;
  return without_exceptions([&] {
    Caller& with = caller(*gate_up->with, *lent);
    Mixture mixture{};
    mixture.tokens = static_cast<int>(rows);
    mixture.experts = static_cast<int>(gate_up->count);
    mixture.each = static_cast<int>(each);
    mixture.logits = logits;
    mixture.logits_stride = logits_stride;
    mixture.gate_up = stack(*gate_up);
    mixture.down = stack(*down);
    const Operand in = with.operand(mixture.gate_up.format, mixture.gate_up.inputs, x, stride, mixture.tokens);
    mixture.x = in.x;
    mixture.stride = in.stride;
    mixture.in = in.rounded;
    mixture.activation = Activation::SILU;
    mixture.routing = OF_CHOSEN;
    mixture.out = out;
    mixture.out_stride = mixture.gate_up.inputs;
    mix_experts(with.machine, mixture);
  });
}

}  // namespace

const kvcast_operators operators = {multiply_packed, look_up, mix};

}  // namespace kvcast
