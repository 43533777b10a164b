// The kernels of an ISA: the innermost loops, each over one tile in the ISA's layout.
// Everything above a tile (threads, loops over tiles, the end of a product) is the same for all sets.
// Letters in shapes: m rows (tokens), n outputs, k inputs, t positions, d head.
#pragma once
#include <cstddef>
#include <cstdint>

#include "instructions.hpp"

namespace kvcast {

constexpr int BLOCK = 64;       // inputs that share a scale of a row, and outputs of a tile
constexpr int GROUP = 32;       // inputs of an output that share a scale in the formats of blocks
constexpr int FINE = 16;        // likewise in the formats of large blocks with 6 or 8 bits
constexpr int LARGE = 256;      // inputs of a large block: its groups' scales are integers, times the block's scale
constexpr int TABLE = 16;       // values that 4-bit codes may map to
constexpr int MOST_ROWS = 6;    // rows of a product: 6 x 4 sums and 4 weights fit in 32 registers
constexpr int MOST_TILE_ROWS = 128;  // rows of a GEMM on matrix units, whose sums are on the stack
constexpr float SMALLEST = 1e-30f;  // a block that stays below it is zero: 127 / it would be infinite

inline int filled(int inputs) { return (inputs + BLOCK - 1) / BLOCK * BLOCK; }

// Rows of activations as int8, symmetric, with a scale for each block. A row's numbers depend on that
// row alone.
struct Rounded {
  int8_t* codes;      // [m, k]; 0 past a row's end
  float* scales;      // [m, k / BLOCK]
  int32_t* offsets;   // [m, k / GROUP]: -128 * the sum of the codes, since weights are stored + 128
  int32_t* fine;      // [m, k / FINE]: likewise
  int inputs;         // k, filled up to a multiple of BLOCK

  Rounded row(size_t m) const {
    const size_t k = inputs;
    return {codes + m * k, scales + m * (k / BLOCK), offsets + m * (k / GROUP), fine + m * (k / FINE), inputs};
  }
  Rounded block(size_t b) const {  // of the first row
    return {codes + b * BLOCK, scales + b, offsets + b * (BLOCK / GROUP), fine + b * (BLOCK / FINE), inputs};
  }
};

// The inputs of a group, in the formats of groups.
inline int depth_of(Format format) {
  switch (format) {
    case Format::INT4_TABLE_FINE:
    case Format::INT4_TABLE_LARGE:
    case Format::INT8_LARGE_MIN:
    case Format::INT6_LARGE: return FINE;
    default: return GROUP;
  }
}

// Whether a format has large blocks.
inline bool is_large(Format format) {
  switch (format) {
    case Format::INT4_LARGE:
    case Format::INT4_TABLE_LARGE:
    case Format::INT8_LARGE_MIN:
    case Format::INT6_LARGE:
    case Format::INT6_LARGE_MIN: return true;
    default: return false;
  }
}

// Whether codes are those of a table's numbers.
inline bool has_table(Format format) {
  return format == Format::INT4_TABLE || format == Format::INT4_TABLE_LARGE || format == Format::INT4_TABLE_FINE;
}

constexpr int ENCODINGS = 131;  // more than the greatest of them
constexpr int FORMATS = 13, BUNDLE_FORMATS = 4;  // the first ones are those of bundles too

// Some outputs of a stored matrix, up to BLOCK.
struct Stored {
  const void* codes;
  const float *scales, *least, *bias;  // least values or zero points, of formats that have them; bias [count], null: zeros
  int count, inputs;
  const float *large_scales, *large_least;  // [count, k / LARGE], of the formats of large blocks
  const int8_t* table;                      // [TABLE], of formats with a table
};

// Rows of a GEMM's input: x for F32, quantized for the other formats.
struct Operand {
  const float* x;
  size_t stride;
  Rounded rounded;
  bool again = false;  // whether the tile was multiplied with other rows just before, and so is in a cache

  Operand row(size_t m) const { return x ? Operand{x + m * stride, stride, {}} : Operand{x, stride, rounded.row(m)}; }
};

// A format's tiles of BLOCK outputs. Outputs that a tile lacks are zeros.
struct Tiles {
  size_t (*bytes)(int inputs);  // a multiple of 64
  void (*pack)(const Stored&, uint8_t* tile);

  // Output n of a tile, as floats [inputs].
  void (*unpack)(const uint8_t* tile, int inputs, int n, float* out);

  // rows x tile + bias: out [rows, BLOCK].
  void (*multiply)(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out);

  int most_rows = MOST_ROWS;  // of `multiply`; up to MOST_TILE_ROWS
};

// The end of a product, for a row's results of one tile: the activation, then + residual; stored and rounded.
struct Epilogue {
  Activation activation;
  const float* residual;  // [count]; null: none
  float* out;             // [count], may be the residual; null: none
  const Rounded* to;      // one block; null: none
};

// GEMM and GEMV with weights that are packed once.
struct Gemm {
  // x [count], up to BLOCK values, to the first block of a row; remaining codes become 0.
  void (*round)(const float* x, int count, const Rounded& to);

  // x [BLOCK], of which the first `count` are results.
  void (*finish)(const float* x, int count, const Epilogue& epilogue);

  Tiles tiles[FORMATS];

  const Tiles& of(Format format) const { return tiles[static_cast<int>(format)]; }
};

constexpr int STATE_COLUMNS = 32;  // of a matrix that stays in the first cache

// Some columns of the state of a head of a row, for new positions. Strides in elements, from position to position.
struct StateColumns {
  int positions, key_dim, columns;
  bool corrects;       // delta rule: the share is of the value minus the state's prediction for the key
  bool by_channel;     // whether decay is per key channel, not per head; of the delta rule alone
  float skip;          // share of the value that is added to a position's result
  const float* query;  // [key_dim]; likewise key
  const float* key;
  size_t stride;
  const float* value;  // [columns]
  size_t value_stride;
  const float* kept;   // of each position the decay of the state, [1] or [key_dim], and the share that is added
  const float* share;
  float* state;  // [key_dim, columns]
  size_t state_stride;
  float* out;  // [columns]
  size_t out_stride;
};

// Norms and gates: operations on rows of activations between products.
struct Rows {
  // x [width], any width, to out, which may be x. RMS norm: x / rms(x) * gain.
  void (*layer_norm)(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out);
  void (*rms_norm)(const float* x, const float* gain, float epsilon, int width, float* out);  // gain null: ones

  // The activation of gate [count] times up [count]; out may be one of them.
  void (*gate)(Activation, const float* gate, const float* up, int count, float* out);

  // The gated delta rule: matrix *= kept; matrix += key x (value - key matrix) * share; out = query matrix + skip value.
  // The selective scan is the same without - key matrix. A position has the same results as alone.
  void (*state)(const StateColumns&);

  // A short convolution at one position: out [count] = bias + the sum of kernel [length, count] * x [length], each of
  // `count` channels. Lines of the kernel are `stride` elements apart; bias null: zeros.
  void (*convolve)(const float* const* x, int length, const float* kernel, size_t stride, const float* bias, int count,
                   float* out);
};

// Bytes of a position of a cache.
constexpr size_t line_bytes(Number number, int head_dim) {
  const size_t d = head_dim;
  return number == Number::F32 ? d * sizeof(float) : number == Number::F16 ? d * sizeof(uint16_t) : d + sizeof(float);
}

// Elements from one line to the next; codes are followed by their scale.
template <class T>
constexpr size_t pitch(int head_dim) {
  return line_bytes(sizeof(T) == sizeof(float) ? Number::F32 : sizeof(T) == 2 ? Number::F16 : Number::INT8, head_dim) / sizeof(T);
}

constexpr int PART = 256;        // positions that are summed before they are merged with others
constexpr int MOST_QUERIES = 12;  // that share a part's keys and values
constexpr int MANY_QUERIES = 96;  // likewise where a set first turns the part into floats
constexpr int SCORES = PART + 16;

// d filled up to whole vectors of 16.
constexpr int padded(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Floats of scratch memory for attention: the scores of at most MOST_QUERIES, and for more queries the part as floats.
constexpr size_t attention_space(int queries, int head_dim) {
  return queries <= MOST_QUERIES ? queries * SCORES : MOST_QUERIES * SCORES + 2 * PART * padded(head_dim);
}

// The softmax over some positions: the values mixed with exp(score - most), not yet divided by the total.
struct Softmax {
  float most, total;  // total 0: no positions
};

// A part of a head's positions, and the queries that see some of them. Nothing that no query sees is read,
// and positions that a query does not see change nothing of its results, NaN included.
struct Part {
  int head_dim, queries;
  Number key_number, value_number;
  const void *keys[2], *values[2];  // [counts[i], d]: two runs of neighbouring positions
  int counts[2];
  int begin;                // the first of them, counted in the part
  const float* query;       // [n, padded(d)], times the scale, zeros past d
  const int *first, *last;  // [n]: each sees first .. last, counted in the part
  const float* const* bias;  // [n], each [PART]; null: none
  float softcap;            // 0: none
};

// Attention over a part. Each query has the same results as alone.
struct Attention {
  // x [2 * half], pairs (i, i + half) rotated.
  void (*rotate)(const float* x, const float* cosines, const float* sines, int half, float* out);

  // x [count] as a line of a cache.
  void (*store)(const float* x, int count, Number, void* to);

  // softmax [n], mixed [n, padded(d)]; `scores` [attention_space(n, d)] is space to work in, aligned to 64 bytes.
  void (*attend)(const Part&, float* scores, Softmax* softmax, float* mixed);

  int most_queries = MOST_QUERIES;  // of `attend`; up to MANY_QUERIES
};

constexpr int PROMPT_QUERIES = 384;  // of a tile
constexpr int PROMPT_LANES = 16;     // queries whose results are read at once

// A prompt's queries that share keys and values, with the softmax over the parts so far.
struct PromptTile {
  int head_dim, queries;  // up to PROMPT_QUERIES
  float softcap;
  uint8_t* space;  // [tile_bytes(n, d)], aligned to 64 bytes
};

// Attention of prompts: approximates `Attention`, for many queries at once. It takes no biases. A query has the same
// results as alone, and they depend on nothing but the positions that it sees.
struct PromptAttention {
  int widest_head;
  size_t (*part_bytes)(int head_dim);
  size_t (*tile_bytes)(int queries, int head_dim);

  // The keys and values of a part, for all tiles; what it has of queries is not read. `to` is aligned to 64 bytes.
  void (*pack)(const Part&, uint8_t* to);

  void (*begin)(const PromptTile&);

  // x [padded(d)], times the scale, zeros past d. A sink is an additional logit in its softmax; -infinity: none.
  void (*take_query)(const PromptTile&, int query, const float* x, float sink);

  // Parts come in their order. Each query sees first .. last, counted in the part.
  void (*attend)(const PromptTile&, const uint8_t* packed, const int* first, const int* last);

  // out [PROMPT_LANES, padded(d)], of queries first .. first + PROMPT_LANES, of which some may be past the tile's last.
  void (*results)(const PromptTile&, int first, float* out);
};

// Operations on rows of scores outside of attention.
struct Scores {
  // A line of a cache as floats [head_dim].
  void (*read)(const void* line, Number, int head_dim, float* out);

  // x [count], which is at least 1.
  void (*softmax)(const float* x, int count, float* out);

  // x [tokens, count] with a stride, count up to BLOCK: less the column's mean, over its deviation.
  void (*standardise)(float* x, size_t stride, int tokens, int count);

  // Adds to out[i] the median of x[i .. i + 6].
  void (*add_medians)(const float* x, int count, float* out);

  // The greatest of x + added, count up to BLOCK, and the sum of the exponentials of each one's difference to it.
  Softmax (*exponentials)(const float* x, const float* added, int count);

  // The greatest of each column of each panel of x [count], -infinity in a column of none; whether x has neither NaN
  // nor infinity, without which they are any.
  bool (*peaks)(const float* x, int count, float* peaks);

  // Likewise the sum of 2^((x - most) * factor), where less than 2^-126 counts as nothing. No number is above `most`,
  // and `peaks` are what the other function found.
  void (*sums)(const float* x, const float* peaks, int count, float most, float factor, float* sums);

  // Each 2^((x - most) * factor) as it was summed; out has room for whole lines of PANEL_COLUMNS.
  void (*weights)(const float* x, int count, float most, float factor, float* out);
};

// A row of logits is read in panels of [DEPTH, PANEL_COLUMNS] values, so that columns need no sums across vectors.
constexpr int PANEL_COLUMNS = 16, PANEL = 64 * PANEL_COLUMNS;

constexpr int WIDEST_HEAD = 512;  // of an encoder's attention

// A head of an encoder in one input.
struct EncoderHead {
  const float *query, *key, *value;  // [t, stride]
  size_t stride;
  int positions, head_dim;  // t, d
  float scale;              // of the products
  uint8_t* packed;          // [head_bytes(t, d)]
  float* out;               // [t, out_stride]
  size_t out_stride;
};

// Attention in which each position sees all, for many positions.
struct EncoderAttention {
  size_t (*head_bytes)(int positions, int head_dim);

  // Positions first .. first + BLOCK, a block of them; blocks may be packed in any order.
  void (*pack_head)(const EncoderHead&, int first);

  // Once all is packed: the results of queries first .. last.
  void (*attend)(const EncoderHead&, int first, int last);
};

// Software prefetch, where the hardware prefetcher does not suffice. Measured on x86 only.
constexpr int AHEAD = 8192, LINE = 64;  // bytes

// Asks for what lies AHEAD of some bytes to come to the second cache: the first one holds what is worked on. It may lie
// past the end of all memory.
inline __attribute__((always_inline)) void fetch_ahead(const void* from, size_t count) {
  constexpr int READ = 0, SECOND = 2;
  const char* ahead = static_cast<const char*>(from) + AHEAD;
  for (size_t line = 0; line < count; line += LINE) __builtin_prefetch(ahead + line, READ, SECOND);
}

// GCC for Windows puts vectors on the stack where they are not aligned (its bug 54412).
#if defined(_WIN32) && !defined(__clang__)
constexpr bool ALIGNED_STACK = false;
#else
constexpr bool ALIGNED_STACK = true;
#endif

// VNNI in AVX2's encoding, and AMX as Linux grants it; compilers that are older do not know them.
#if defined(__x86_64__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#define KVCAST_AVX_VNNI
#if defined(__linux__)
#define KVCAST_AMX
#endif
#endif

// A file's codes, one per byte, as in `Format`; absent fields are null.
struct OwnCodes {
  int8_t* codes;
  float *scales, *least, *large_scales, *large_least;
};

// The numbers of an encoding's codes; null where they are the codes themselves.
const int8_t* table_of(Encoding);

// The grid of an encoding, whose codes stand for several values: [codes, 8] or, of IQ3, [codes, 4], what is added to the
// sign for a code of the table.
const uint8_t* grid_of(Encoding);

// Rows of a file, `count` values each, read and quantized. 4-bit codes are two per byte.
struct Reading {
  void (*numbers)(Encoding, const uint8_t* row, int count, float* out);

  // Codes with their scales and least values for each GROUP; false for an encoding without codes of 4 bits.
  bool (*codes)(Encoding, const uint8_t* row, int count, uint8_t* codes, float* scales, float* least);

  // The codes of a row unchanged; false if the format cannot hold them.
  bool (*own)(Format, Encoding, const uint8_t* row, int count, const OwnCodes& to);

  void (*round_row)(const float* x, int count, int8_t* codes, float* scale);        // one scale
  void (*round_groups)(const float* x, int count, int8_t* codes, float* scales);    // for each GROUP
  void (*search)(const float* x, int count, uint8_t* codes, float* scales, float* least);
};

// Multiply-adds in registers, the upper bound of any GEMM. Each returns the operations of `turns`.
struct Peaks {
  double (*int8)(int64_t turns);
  double (*fp32)(int64_t turns);
};

struct Instructions {
  const char* name;
  const char* kernels;  // description of the kernels for int8 and int4 models
  bool (*run_here)();  // whether the processor and the system have them
  const Peaks& peaks;
  const Gemm& gemm;
  const Rows& rows;
  const Attention& attention;
  const EncoderAttention& encoder_attention;
  const Scores& scores;
  const Reading& reading;
  const PromptAttention* prompt_attention = nullptr;  // null: prompts are attended to as all else
};

extern const Instructions plain;
#if defined(__x86_64__)
extern const Instructions avx512_bf16;
extern const Instructions avx512_vnni;
extern const Instructions avx2;
#endif
#if defined(KVCAST_AVX_VNNI)
extern const Instructions avx2_vnni;
#endif
#if defined(KVCAST_AMX)
extern const Instructions amx;
#endif
#if defined(__AARCH64EL__)
extern const Instructions neon_i8mm;
extern const Instructions neon;
#endif

}  // namespace kvcast
