// What an instruction set brings: the innermost work, each over one tile that lies in a layout of its
// own. Everything above a tile (threads, loops over tiles, what follows a product) is the same for all.
// Letters in shapes: m rows (tokens), n outputs, k inputs, t positions, d head.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvcast {

constexpr int BLOCK = 64;       // inputs that share a scale of a row, and outputs of a tile
constexpr int MOST_ROWS = 6;    // rows of a product: 6 x 4 sums and 4 weights fit in 32 registers
constexpr float SMALLEST = 1e-30f;  // a block that stays below it is zero: 127 / it would be infinite

// Rows of activations as int8, symmetric, with a scale for each block. A row's numbers depend on that
// row alone.
struct Rounded {
  int8_t* codes;      // [m, k]
  float* scales;      // [m, k / BLOCK]
  int32_t* offsets;   // [m, k / BLOCK]: -128 * the sum of the codes, since weights are stored + 128
  int inputs;         // k, a multiple of BLOCK

  Rounded row(size_t m) const {
    const size_t blocks = inputs / BLOCK;
    return {codes + m * inputs, scales + m * blocks, offsets + m * blocks, inputs};
  }
  Rounded block(size_t b) const {  // of the first row
    return {codes + b * BLOCK, scales + b, offsets + b, inputs};
  }
};

// Products with weights that are packed once, in tiles of BLOCK outputs.
struct Products {
  // x [count], up to BLOCK numbers, to the first block of a row; codes after them become 0.
  void (*round)(const float* x, int count, const Rounded& to);

  // codes int8 [BLOCK, k], scales [BLOCK] and bias [BLOCK] of as many outputs, to a tile of
  // tile_bytes(k); k is a multiple of BLOCK.
  size_t (*tile_bytes)(int inputs);
  void (*pack)(const int8_t* codes, const float* scales, const float* bias, int inputs, uint8_t* tile);

  // rows x tile + bias: out [rows, BLOCK], rows up to MOST_ROWS.
  void (*multiply)(const uint8_t* tile, const Rounded& in, int rows, float* out);
};

// What happens to rows of activations between products.
struct Rows {
  // Layer norm of x [width], any width.
  void (*layer_norm)(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out);

  // x [count] becomes gelu(x), the one with erf.
  void (*gelu)(float* x, int count);
};

// Attention in which each position sees all, for many positions. A head is packed in parts of BLOCK
// positions, which may be packed in any order: from query, key and value [t, stride] of one head,
// positions first .. first + BLOCK. `scale` is of the products. `attend` gives out [t, stride] for
// queries first .. last.
struct EncoderAttention {
  size_t (*head_bytes)(int positions, int head_dim);
  void (*pack_head)(const float* query, const float* key, const float* value, size_t stride, int positions,
                    int head_dim, float scale, int first, uint8_t* head);
  void (*attend)(const uint8_t* head, int positions, int head_dim, int first, int last, float* out, size_t stride);
};

struct Instructions {
  const char* name;
  bool (*run_here)();
  const Products& products;
  const Rows& rows;
  const EncoderAttention& encoder_attention;
};

extern const Instructions plain;
#if defined(__x86_64__)
extern const Instructions avx512;
#endif

}  // namespace kvcast
