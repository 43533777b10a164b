#include "packing.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "products.hpp"

namespace kvcast {
namespace {

// Some rows of a matrix as its format stores them, and room for one row's numbers.
struct Coded {
  std::vector<float> numbers, scales, least;
  std::vector<uint8_t> codes;

  void resize(Format format, size_t inputs) {
    const size_t groups = inputs / GROUP;
    if (format == Format::F32) {
      numbers.resize(BLOCK * inputs);
      return;
    }
    numbers.resize(inputs);
    codes.resize(BLOCK * (format == Format::INT4_MIN ? inputs / 2 : inputs));
    scales.resize(BLOCK * std::max<size_t>(groups, 1));
    if (format == Format::INT4_MIN) least.resize(BLOCK * groups);
  }
};

// Q8_0: a half and GROUP codes in each block.
void copy_groups(const uint8_t* row, int groups, uint8_t* codes, float* scales, const Reading& reading) {
  constexpr int BYTES = 2 + GROUP;
  for (int g = 0; g < groups; g++, row += BYTES) {
    reading.numbers(Encoding::F16, row, 1, scales + g);
    std::memcpy(codes + g * GROUP, row + 2, GROUP);
  }
}

// Row n of those that are being packed.
void code_row(Format format, Encoding encoding, const uint8_t* row, int n, int inputs, Coded& to, const Reading& reading) {
  if (format == Format::F32) {
    reading.numbers(encoding, row, inputs, to.numbers.data() + static_cast<size_t>(n) * inputs);
    return;
  }
  const int groups = inputs / GROUP;
  uint8_t* codes = to.codes.data() + static_cast<size_t>(n) * (format == Format::INT4_MIN ? inputs / 2 : inputs);
  float* scales = to.scales.data() + static_cast<size_t>(n) * (format == Format::INT8 ? 1 : groups);
  if (format == Format::INT8_BLOCK && encoding == Encoding::Q8_0) {
    copy_groups(row, groups, codes, scales, reading);
    return;
  }
  float* least = format == Format::INT4_MIN ? to.least.data() + static_cast<size_t>(n) * groups : nullptr;
  if (least && reading.codes(encoding, row, inputs, codes, scales, least)) return;
  float* numbers = to.numbers.data();
  reading.numbers(encoding, row, inputs, numbers);
  if (least)
    reading.search(numbers, inputs, codes, scales, least);
  else if (format == Format::INT8)
    reading.round_row(numbers, inputs, reinterpret_cast<int8_t*>(codes), scales);
  else
    reading.round_groups(numbers, inputs, reinterpret_cast<int8_t*>(codes), scales);
}

}  // namespace

void pack_rows(Machine& machine, Format format, int outputs, int inputs, const FileRows& from, const float* bias,
               uint8_t* tiles) {
  const Tiles& of = machine.with.products.of(format);
  const size_t bytes = of.bytes(inputs);
  machine.threads.run(parts(outputs, BLOCK), [&](int tile) {
    thread_local Coded coded;  // its pages are touched once
    coded.resize(format, inputs);
    const int first = tile * BLOCK, count = std::min(BLOCK, outputs - first);
    for (int n = 0; n < count; n++)
      code_row(format, from.encodings[first + n], from.rows[first + n], n, inputs, coded, machine.with.reading);
    Stored stored{};
    stored.codes = format == Format::F32 ? static_cast<const void*>(coded.numbers.data()) : coded.codes.data();
    stored.scales = coded.scales.data();
    stored.least = coded.least.data();
    stored.bias = bias ? bias + first : nullptr;
    stored.count = count;
    stored.inputs = inputs;
    of.pack(stored, tiles + tile * bytes);
  });
}

}  // namespace kvcast
