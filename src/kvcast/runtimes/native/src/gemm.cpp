// Loops over tiles and rows, the same for all instruction sets and formats.
#include "gemm.hpp"

#include <algorithm>
#include <stdexcept>

#include "rows.hpp"

namespace kvcast {
namespace {

constexpr int ROWS_AT_ONCE = 42 * MOST_ROWS;  // so that their codes stay in the second cache
constexpr int TILES_AT_ONCE = 8;
constexpr int GATED_ROWS = 4 * MOST_ROWS;
constexpr int FLOATS_OF_LINE = 16;
constexpr int PARTS_OF_A_THREAD = 8;  // so that one that is late delays little

// Bytes of a row of stored codes.
size_t code_bytes(Format format, int inputs) {
  switch (format) {
    case Format::F32: return inputs * sizeof(float);
    case Format::INT4_MIN: return (inputs + 1) / 2;
    default: return inputs;
  }
}

size_t scales_of_output(Format format, int inputs) { return format == Format::INT8 ? 1 : parts(inputs, GROUP); }

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

size_t packed_bytes(const Instructions& with, Format format, int outputs, int inputs) {
  return parts(outputs, BLOCK) * with.gemm.of(format).bytes(inputs);
}

void pack(Machine& machine, Format format, int outputs, int inputs, const void* codes, const float* scales,
          const float* bias, uint8_t* tiles) {
  if (static_cast<int>(format) >= BUNDLE_FORMATS) throw std::invalid_argument("a format that files alone have");
  const Tiles& of = machine.with.gemm.of(format);
  const size_t row = code_bytes(format, inputs), each = scales_of_output(format, inputs), bytes = of.bytes(inputs);
  machine.threads.run(parts(outputs, BLOCK), [&](int tile) {
    const size_t first = static_cast<size_t>(tile) * BLOCK;
    Stored stored = {static_cast<const uint8_t*>(codes) + first * row};
    if (format != Format::F32) stored.scales = scales + first * each;
    if (format == Format::INT4_MIN) stored.least = scales + (outputs + first) * each;
    if (bias) stored.bias = bias + first;
    stored.count = std::min(BLOCK, outputs - tile * BLOCK);
    stored.inputs = inputs;
    of.pack(stored, tiles + tile * bytes);
  });
}

void unpack_row(const Instructions& with, const Matrix& matrix, int n, float* out) {
  const Tiles& of = with.gemm.of(matrix.format);
  of.unpack(matrix.tiles + n / BLOCK * of.bytes(matrix.inputs), matrix.inputs, n % BLOCK, out);
}

size_t rounded_bytes(int rows, int inputs) {
  const size_t all = static_cast<size_t>(rows) * filled(inputs);
  return aligned(all) + aligned(all / BLOCK * sizeof(float)) + aligned(all / GROUP * sizeof(int32_t)) +
         aligned(all / FINE * sizeof(int32_t));
}

Rounded rounded(uint8_t* data, int rows, int inputs) {
  const size_t all = static_cast<size_t>(rows) * filled(inputs);
  uint8_t *scales = data + aligned(all), *offsets = scales + aligned(all / BLOCK * sizeof(float));
  uint8_t* fine = offsets + aligned(all / GROUP * sizeof(int32_t));
  return {reinterpret_cast<int8_t*>(data), reinterpret_cast<float*>(scales), reinterpret_cast<int32_t*>(offsets),
          reinterpret_cast<int32_t*>(fine), filled(inputs)};
}

void round_rows(Machine& machine, const float* x, size_t stride, int rows, int inputs, const Rounded& to) {
  for_rows(machine, rows, inputs, [&](int m) { round_row(machine.with, x + m * stride, inputs, to.row(m)); });
}

void multiply(Machine& machine, const Product& product) {
  const Gemm& with = machine.with.gemm;
  const Matrix& matrix = product.matrix;
  const Tiles& of = with.of(matrix.format);
  const size_t bytes = of.bytes(matrix.inputs);
  const Operand in = {product.x, product.stride, product.in};
  const int halves = product.gated ? 2 : 1, outputs = matrix.outputs / halves;
  const int rows_at_once = ROWS_AT_ONCE / of.most_rows * of.most_rows;
  const int tiles = parts(outputs, BLOCK), row_parts = parts(product.rows, rows_at_once);
  const int fewest = PARTS_OF_A_THREAD * machine.threads.count();
  const int at_once = std::clamp(halves * tiles * row_parts / fewest, 1, TILES_AT_ONCE) / halves;
  const int tiles_at_once = std::max(1, at_once), tile_parts = parts(tiles, tiles_at_once);
  // A gate's rows wait for the other half's, while its tile stays in the first cache.
  const int rows_of_tile = product.gated ? std::max(GATED_ROWS, of.most_rows) : of.most_rows;

  const auto finish = [&](const float* sums, int m, int tile) {
    const size_t first = static_cast<size_t>(tile) * BLOCK;
    Epilogue epilogue = {product.gated ? Activation::NONE : product.activation};
    Rounded to;
    if (product.residual) epilogue.residual = product.residual + m * product.residual_stride + first;
    if (product.out) epilogue.out = product.out + m * product.out_stride + first;
    if (product.to) {
      to = product.to->row(m).block(tile);
      epilogue.to = &to;
    }
    with.finish(sums, std::min(BLOCK, outputs - tile * BLOCK), epilogue);
  };
  // The results' residuals and destinations are prefetched to L2 while they are computed: L1 holds the factors.
  constexpr int SECOND = 2;
  const auto fetch = [&](int m, int tile) {
    const size_t first = static_cast<size_t>(tile) * BLOCK;
    for (int i = 0; i < std::min(BLOCK, outputs - tile * BLOCK); i += FLOATS_OF_LINE) {
      if (product.residual) __builtin_prefetch(product.residual + m * product.residual_stride + first + i, 0, SECOND);
      if (product.out) __builtin_prefetch(product.out + m * product.out_stride + first + i, 1, SECOND);
    }
    if (product.to) __builtin_prefetch(product.to->row(m).block(tile).codes, 1, SECOND);
  };
  machine.threads.run(row_parts * tile_parts, [&](int part) {
    const int first = part / tile_parts * rows_at_once, last = std::min(first + rows_at_once, product.rows);
    const int tile = part % tile_parts * tiles_at_once;
    alignas(64) float sums[2][MOST_TILE_ROWS * BLOCK];
    for (int t = tile; t < std::min(tile + tiles_at_once, tiles); t++)
      for (int m = first; m < last; m += rows_of_tile) {
        const int count = std::min(rows_of_tile, last - m);
        for (int i = 0; i < count; i++) fetch(m + i, t);
        for (int half = 0; half < halves; half++)
          for (int i = 0; i < count; i += of.most_rows) {
            Operand operand = in.row(m + i);
            operand.again = m + i > first;
            of.multiply(matrix.tiles + (t + half * tiles) * bytes, operand, matrix.inputs, std::min(of.most_rows, count - i),
                        sums[half] + i * BLOCK);
          }
        for (int i = 0; i < count; i++) {
          float* const row = sums[0] + i * BLOCK;
          if (product.gated) machine.with.rows.gate(product.activation, row, sums[1] + i * BLOCK, BLOCK, row);
          finish(row, m + i, t);
        }
      }
  });
}

}  // namespace kvcast
