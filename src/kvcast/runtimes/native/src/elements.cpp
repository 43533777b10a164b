#include "program.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "halves.hpp"

namespace kvcast {
namespace {

constexpr int64_t AT_ONCE = 16384;  // elements that are worth a tile

// Saturates floats out of range, NaN to 0; C++ leaves both undefined.
template <class To, class From>
To converted(From x) {
  if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    constexpr From END = -static_cast<From>(std::numeric_limits<To>::min());  // the first that is too large
    if (std::isnan(x)) return 0;
    if (x >= END) return std::numeric_limits<To>::max();
    if (x < -END) return std::numeric_limits<To>::min();
  }
  return static_cast<To>(x);
}

template <class T>
T load(const Array& from, int64_t at) {
  switch (from.dtype) {
    case Dtype::F32: return converted<T>(static_cast<const float*>(from.data)[at]);
    case Dtype::F16: return converted<T>(from_half(static_cast<const uint16_t*>(from.data)[at]));
    case Dtype::I32: return static_cast<T>(static_cast<const int32_t*>(from.data)[at]);
    case Dtype::I64: return static_cast<T>(static_cast<const int64_t*>(from.data)[at]);
    case Dtype::BOOL: return static_cast<T>(static_cast<const uint8_t*>(from.data)[at]);
  }
  return T{};
}

template <class T>
void store(const Array& to, int64_t at, T value) {
  switch (to.dtype) {
    case Dtype::F32: static_cast<float*>(to.data)[at] = static_cast<float>(value); break;
    case Dtype::F16: static_cast<uint16_t*>(to.data)[at] = to_half(static_cast<float>(value)); break;
    case Dtype::I32: static_cast<int32_t*>(to.data)[at] = converted<int32_t>(value); break;
    case Dtype::I64: static_cast<int64_t*>(to.data)[at] = converted<int64_t>(value); break;
    case Dtype::BOOL: static_cast<uint8_t*>(to.data)[at] = value != T{}; break;
  }
}

float activated(Element operation, float x) {
  switch (operation) {
    case Element::TANH: return std::tanh(x);
    case Element::GELU: return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    case Element::GELU_TANH: return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Element::SILU: return x / (1 + std::exp(-x));
    case Element::ASINH: return std::asinh(x);
    default: return std::max(x, 0.f);
  }
}

template <class T>
T computed(Element operation, T a, T b, T c) {
  switch (operation) {
    case Element::COPY: return a;
    case Element::ADD: return a + b;
    case Element::SUB: return a - b;
    case Element::MUL: return a * b;
    case Element::DIV: return a / b;
    case Element::MAXIMUM: return std::max(a, b);
    case Element::MINIMUM: return std::min(a, b);
    case Element::LT: return a < b;
    case Element::GE: return a >= b;
    case Element::EQ: return a == b;
    case Element::WHERE: return a != T{} ? b : c;
    default: return converted<T>(activated(operation, static_cast<float>(a)));
  }
}

bool is_float(const Array& array) { return array.dtype == Dtype::F32 || array.dtype == Dtype::F16; }

// The last axis of an array at an index of the others.
struct Line {
  const Array& array;
  int64_t at;
};

template <class T>
void line_of(Element operation, int64_t size, const Array& out, int64_t at, const Array* inputs, const int64_t* froms,
             int count) {
  for (int64_t i = 0; i < size; i++) {
    T values[3] = {};
    for (int n = 0; n < count; n++) values[n] = load<T>(inputs[n], froms[n] + i * inputs[n].strides[DIMS - 1]);
    store(out, at + i * out.strides[DIMS - 1], computed(operation, values[0], values[1], values[2]));
  }
}

// The frequent operations, over contiguous floats and a scalar.
bool fast_line(const Attention& with, Element operation, int64_t size, const Array& out, int64_t at,
               const Array* inputs, const int64_t* froms, int count) {
  const auto contiguous = [](const Array& array) {
    return array.dtype == Dtype::F32 && array.strides[DIMS - 1] == 1;
  };
  const bool by_number = count == 2 && inputs[1].dtype == Dtype::F32 && inputs[1].strides[DIMS - 1] == 0;
  if (!std::all_of(inputs, inputs + count - by_number, contiguous)) return false;
  const float* a = static_cast<const float*>(inputs[0].data) + froms[0];
  if (operation == Element::COPY && out.dtype == Dtype::F16 && out.strides[DIMS - 1] == 1) {
    with.store(a, static_cast<int>(size), Number::F16, static_cast<uint16_t*>(out.data) + at);
    return true;
  }
  if (!contiguous(out)) return false;
  float* to = static_cast<float*>(out.data) + at;
  if (operation == Element::COPY) {
    std::memmove(to, a, size * sizeof(float));
    return true;
  }
  if (count != 2) return false;
  const float* b = static_cast<const float*>(inputs[1].data) + froms[1];
  if (by_number && operation == Element::MUL)
    std::transform(a, a + size, to, [factor = *b](float x) { return x * factor; });
  else if (by_number)
    return false;
  else if (operation == Element::ADD)
    for (int64_t i = 0; i < size; i++) to[i] = a[i] + b[i];
  else if (operation == Element::MUL)
    for (int64_t i = 0; i < size; i++) to[i] = a[i] * b[i];
  else
    return false;
  return true;
}

}  // namespace

void elementwise(Machine& machine, Element operation, const int64_t sizes[DIMS], const Array& out,
                 const Array* inputs, int count) {
  const int first = operation == Element::WHERE ? 1 : 0;
  const bool floating = is_float(out) || std::any_of(inputs + first, inputs + count, is_float);
  const int64_t lines = sizes[0] * sizes[1] * sizes[2], size = sizes[3];
  if (lines * size == 0) return;
  const int64_t each = std::max<int64_t>(1, AT_ONCE / size);
  machine.threads.run(static_cast<int>((lines + each - 1) / each), [&](int part) {
    for (int64_t line = part * each; line < std::min(lines, (part + 1) * each); line++) {
      const int64_t index[3] = {line / (sizes[1] * sizes[2]), line / sizes[2] % sizes[1], line % sizes[2]};
      const auto place = [&](const Array& array) {
        return index[0] * array.strides[0] + index[1] * array.strides[1] + index[2] * array.strides[2];
      };
      int64_t froms[3] = {};
      for (int n = 0; n < count; n++) froms[n] = place(inputs[n]);
      const int64_t at = place(out);
      if (fast_line(machine.with.attention, operation, size, out, at, inputs, froms, count)) continue;
      if (floating)
        line_of<float>(operation, size, out, at, inputs, froms, count);
      else
        line_of<int64_t>(operation, size, out, at, inputs, froms, count);
    }
  });
}

void gather(Machine& machine, const Gather& g) {
  const int64_t lines = g.sizes[0] * g.sizes[1];
  for (int64_t j = 0; j < g.sizes[1]; j++)
    if (g.index[j] < 0 || g.index[j] >= g.limit) throw std::out_of_range("an index is past its axis");
  const int64_t each = std::max<int64_t>(1, AT_ONCE / std::max<int64_t>(1, g.sizes[2]));
  machine.threads.run(static_cast<int>((lines + each - 1) / each), [&](int part) {
    for (int64_t line = part * each; line < std::min(lines, (part + 1) * each); line++) {
      const int64_t i = line / g.sizes[1], j = line % g.sizes[1];
      const float* from = g.x + i * g.strides[0] + g.index[j] * g.strides[1];
      float* to = g.out + i * g.out_strides[0] + j * g.out_strides[1];
      for (int64_t k = 0; k < g.sizes[2]; k++) to[k * g.out_strides[2]] = from[k * g.strides[2]];
    }
  });
}

}  // namespace kvcast
