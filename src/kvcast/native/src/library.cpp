// The C interface, and what is the same for all instruction sets: loops over tiles, shared by threads.
#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

#include "kernels.hpp"
#include "threads.hpp"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

using namespace kvcast;

namespace {

const Instructions* const ALL[] = {
#if defined(__x86_64__)
    &avx512,
#endif
    &plain,
};
constexpr int COUNT = sizeof ALL / sizeof *ALL;

constexpr int ROWS_AT_ONCE = 42 * MOST_ROWS;  // so that their codes stay in the second cache
constexpr int TILES_AT_ONCE = 8;
constexpr int QUERIES_AT_ONCE = 10 * MOST_ROWS;
constexpr int NORMS_AT_ONCE = 32;

int parts(int whole, int size) { return (whole + size - 1) / size; }

}  // namespace

// What follows a product. Numbered as in kernels.py.
enum Ending { STORE = 0, ADD = 1, GELU = 2 };

struct kvcast_machine {
  const Instructions& with;
  Threads threads;
};

// The name of the i-th instruction set that runs here, fastest first; null past the last.
EXPORT const char* kvcast_instructions(int i) {
  for (const Instructions* one : ALL)
    if (one->run_here() && i-- == 0) return one->name;
  return nullptr;
}

// Null for instructions that are unknown or do not run here, and where no thread is to be had.
EXPORT kvcast_machine* kvcast_open(const char* instructions, int threads) {
  for (const Instructions* one : ALL) {
    if (!one->run_here() || std::strcmp(one->name, instructions) != 0) continue;
    try {
      return new kvcast_machine{*one, Threads(threads)};
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  return nullptr;
}

EXPORT void kvcast_close(kvcast_machine* machine) { delete machine; }

// Bytes of a packed matrix [outputs, inputs]; both are multiples of BLOCK.
EXPORT size_t kvcast_packed_bytes(const kvcast_machine* machine, int outputs, int inputs) {
  return outputs / BLOCK * machine->with.tile_bytes(inputs);
}

// codes int8 [outputs, inputs], scales [outputs] and bias [outputs] to `packed`.
EXPORT void kvcast_pack(kvcast_machine* machine, const int8_t* codes, const float* scales, const float* bias,
                        int outputs, int inputs, uint8_t* packed) {
  const Instructions& with = machine->with;
  machine->threads.run(outputs / BLOCK, [&](int tile) {
    const size_t first = static_cast<size_t>(tile) * BLOCK;
    with.pack(codes + first * inputs, scales + first, bias + first, inputs, packed + tile * with.tile_bytes(inputs));
  });
}

// x [rows, to->inputs] to int8.
EXPORT void kvcast_round(kvcast_machine* machine, const float* x, int rows, const Rounded* to) {
  machine->threads.run(parts(rows, NORMS_AT_ONCE), [&](int part) {
    const int first = part * NORMS_AT_ONCE;
    for (int m = first; m < std::min(first + NORMS_AT_ONCE, rows); m++)
      for (int b = 0; b < to->inputs / BLOCK; b++)
        machine->with.round(x + static_cast<size_t>(m) * to->inputs + b * BLOCK, to->row(m).block(b));
  });
}

// Layer norm of x [rows, to->inputs], to int8.
EXPORT void kvcast_layer_norm(kvcast_machine* machine, const float* x, int rows, const float* gain, const float* bias,
                              float epsilon, const Rounded* to) {
  machine->threads.run(parts(rows, NORMS_AT_ONCE), [&](int part) {
    const int width = to->inputs, first = part * NORMS_AT_ONCE;
    std::vector<float> normed(width);
    for (int m = first; m < std::min(first + NORMS_AT_ONCE, rows); m++) {
      machine->with.layer_norm(x + static_cast<size_t>(m) * width, gain, bias, epsilon, width, normed.data());
      for (int b = 0; b < width / BLOCK; b++) machine->with.round(normed.data() + b * BLOCK, to->row(m).block(b));
    }
  });
}

// in [rows, k] x packed [outputs, k], with its bias: stored in or added to out [rows, outputs], or its gelu
// rounded to `to` [rows, outputs].
EXPORT void kvcast_product(kvcast_machine* machine, const uint8_t* packed, int outputs, const Rounded* in,
                           int rows, int ending, float* out, const Rounded* to) {
  const Instructions& with = machine->with;
  const int tiles = outputs / BLOCK, tile_parts = parts(tiles, TILES_AT_ONCE);
  const auto finish = [&](float* x, int m, int tile) {  // x [BLOCK]
    const int first = tile * BLOCK;
    float* at = out + static_cast<size_t>(m) * outputs + first;
    if (ending == STORE) std::memcpy(at, x, BLOCK * sizeof(float));
    if (ending == ADD)
      for (int n = 0; n < BLOCK; n++) at[n] += x[n];
    if (ending == GELU) {
      with.gelu(x, BLOCK);
      with.round(x, to->row(m).block(tile));
    }
  };
  machine->threads.run(parts(rows, ROWS_AT_ONCE) * tile_parts, [&](int part) {
    const int first = part / tile_parts * ROWS_AT_ONCE, last = std::min(first + ROWS_AT_ONCE, rows);
    const int tile = part % tile_parts * TILES_AT_ONCE;
    alignas(64) float sums[MOST_ROWS * BLOCK];
    for (int t = tile; t < std::min(tile + TILES_AT_ONCE, tiles); t++)
      for (int m = first; m < last; m += MOST_ROWS) {
        const int count = std::min(MOST_ROWS, last - m);
        with.multiply(packed + t * with.tile_bytes(in->inputs), in->row(m), count, sums);
        for (int i = 0; i < count; i++) finish(sums + i * BLOCK, m + i, t);
      }
  });
}

// Bytes that kvcast_encoder_attention works in.
EXPORT size_t kvcast_attention_bytes(const kvcast_machine* machine, int positions, int heads, int head_dim) {
  return heads * machine->with.head_bytes(positions, head_dim);
}

// query_key_value [positions, 3 * heads * head_dim] to out [positions, heads * head_dim]: every position
// sees all.
EXPORT void kvcast_encoder_attention(kvcast_machine* machine, const float* query_key_value, int positions, int heads,
                                     int head_dim, float scale, uint8_t* space, float* out) {
  const Instructions& with = machine->with;
  const size_t width = static_cast<size_t>(heads) * head_dim, bytes = with.head_bytes(positions, head_dim);
  const int blocks = parts(positions, BLOCK), queries = parts(positions, QUERIES_AT_ONCE);
  machine->threads.run(heads * blocks, [&](int part) {
    const int head = part / blocks;
    const float* query = query_key_value + head * head_dim;
    with.pack_head(query, query + width, query + 2 * width, 3 * width, positions, head_dim, scale,
                   part % blocks * BLOCK, space + head * bytes);
  });
  machine->threads.run(heads * queries, [&](int part) {
    const int head = part / queries, first = part % queries * QUERIES_AT_ONCE;
    with.attend(space + head * bytes, positions, head_dim, first, std::min(first + QUERIES_AT_ONCE, positions),
                out + head * head_dim, width);
  });
}
