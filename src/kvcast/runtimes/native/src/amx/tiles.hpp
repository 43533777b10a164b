// The tile operations of AMX, as Intel's Software Developer's Manual describes them: eight tiles of up to 16 rows
// of 64 bytes, whose shapes are set before use. Tiles and shapes belong to the thread, and no call may leave any
// behind: the code that sets shapes releases them.
//
// With KVCAST_EMULATE_AMX the same operations in C++, for tests where no processor has them. What a processor
// refuses ends the program.
#pragma once
#include "kernels.hpp"
#if defined(KVCAST_AMX)
#include <cstdint>
#if defined(KVCAST_EMULATE_AMX)
#include <cmath>
#include <cstdlib>
#include <cstring>
#endif

namespace kvcast {
namespace amx_tiles {

constexpr int TILES = 8, ROWS = 16, ROW_BYTES = 64;

// The operand of LDTILECFG.
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(Shapes) == 64, "as the processor reads it");

#if !defined(KVCAST_EMULATE_AMX)

// Instructions that read or write memory say so of all memory: the compiler knows neither rows nor strides. The
// order of those without is that of the source, as they are volatile.
#define ALWAYS inline __attribute__((always_inline))

ALWAYS void set_shapes(const Shapes& shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
ALWAYS void release() { asm volatile("tilerelease" ::: "memory"); }

template <int TILE>
ALWAYS void zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(TILE));
}

template <int TILE>
ALWAYS void load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE) : "memory");
}

template <int TILE>
ALWAYS void store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(TILE) : "memory");
}

// int32 sums [m, n] += int8 a [m, k] x uint8 b [k / 4, n, 4].
template <int SUMS, int A, int B>
ALWAYS void dot_int8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
}

// The same with int8 b.
template <int SUMS, int A, int B>
ALWAYS void dot_signed() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
}

// float sums [m, n] += bf16 a [m, k] x bf16 b [k / 2, n, 2].
template <int SUMS, int A, int B>
ALWAYS void dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUMS), "i"(A), "i"(B));
}

#undef ALWAYS

#else

inline void refuse_unless(bool met) {
  if (!met) std::abort();
}

// A thread's tiles.
struct State {
  bool has_shapes = false;
  Shapes shapes;
  uint8_t tiles[TILES][ROWS][ROW_BYTES];

  int rows(int tile) const { return shapes.rows[tile]; }
  int row_bytes(int tile) const { return shapes.row_bytes[tile]; }

  uint8_t (*of(int tile))[ROW_BYTES] {
    refuse_unless(has_shapes && rows(tile) > 0);
    return tiles[tile];
  }
};

inline thread_local State state;

inline void set_shapes(const Shapes& shapes) {
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(&shapes);
  refuse_unless(shapes.palette == 1 && shapes.start_row == 0);
  for (int i = 2; i < 64; i++) refuse_unless(bytes[i] == 0 || (i >= 16 && i < 32) || (i >= 48 && i < 56));
  for (int i = 0; i < TILES; i++) {
    refuse_unless(shapes.rows[i] <= ROWS && shapes.row_bytes[i] <= ROW_BYTES);
    refuse_unless((shapes.rows[i] == 0) == (shapes.row_bytes[i] == 0));
  }
  state.has_shapes = true;
  state.shapes = shapes;
  std::memset(state.tiles, 0, sizeof state.tiles);
}

inline void release() { state.has_shapes = false; }

template <int TILE>
void zero() {
  std::memset(state.of(TILE), 0, sizeof state.tiles[TILE]);
}

template <int TILE>
void load(const void* from, size_t stride) {
  zero<TILE>();
  for (int m = 0; m < state.rows(TILE); m++)
    std::memcpy(state.of(TILE)[m], static_cast<const uint8_t*>(from) + m * stride, state.row_bytes(TILE));
}

template <int TILE>
void store(void* to, size_t stride) {
  for (int m = 0; m < state.rows(TILE); m++)
    std::memcpy(static_cast<uint8_t*>(to) + m * stride, state.of(TILE)[m], state.row_bytes(TILE));
}

// Nobody else has a thread's tiles: looking for races in every sum would take most of a test's time.
#define ALONE __attribute__((no_sanitize("thread")))

template <class Number>
ALONE Number number_at(const uint8_t* bytes, int i) {
  Number number;
  std::memcpy(&number, bytes + i * sizeof number, sizeof number);
  return number;
}

// A row of A [depth, 4], a column n of B [depth, n, 4], and their sum so far.
using Row = const uint8_t*;
using Rows = const uint8_t (*)[ROW_BYTES];

template <class Number, int SUMS, int A, int B>
ALONE void dot_all(Number (*dot)(Number sum, Row a, Rows b, int n, int depth)) {
  static_assert(SUMS != A && SUMS != B && A != B, "the processor wants three tiles");
  const int columns = state.row_bytes(SUMS) / 4, depth = state.row_bytes(A) / 4;
  refuse_unless(state.row_bytes(SUMS) % 4 == 0 && state.row_bytes(A) % 4 == 0 && state.row_bytes(B) % 4 == 0);
  refuse_unless(state.rows(SUMS) == state.rows(A) && state.row_bytes(SUMS) == state.row_bytes(B));
  refuse_unless(state.rows(B) == depth);
  uint8_t(*sums)[ROW_BYTES] = state.of(SUMS), (*a)[ROW_BYTES] = state.of(A), (*b)[ROW_BYTES] = state.of(B);
  for (int m = 0; m < state.rows(SUMS); m++)
    for (int n = 0; n < columns; n++) {
      const Number sum = dot(number_at<Number>(sums[m], n), a[m], b, n, depth);
      std::memcpy(sums[m] + 4 * n, &sum, sizeof sum);
    }
}

template <class Byte>
ALONE uint32_t add_int8(uint32_t sum, Row a, Rows b, int n, int depth) {
  for (int k = 0; k < depth; k++)
    for (int i = 0; i < 4; i++)
      sum += static_cast<uint32_t>(static_cast<int8_t>(a[4 * k + i]) * static_cast<Byte>(b[k][4 * n + i]));
  return sum;
}

// Subnormal numbers count as zero, before and after.
ALONE inline float flushed(float x) { return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.f, x) : x; }

ALONE inline float from_bf16(Row bytes, int i) {
  const uint32_t bits = static_cast<uint32_t>(number_at<uint16_t>(bytes, i)) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return flushed(x);
}

// The first and the second of all pairs are summed apart.
ALONE inline float add_bf16(float sum, Row a, Rows b, int n, int depth) {
  float parts[2] = {0, 0};
  for (int k = 0; k < depth; k++)
    for (int i = 0; i < 2; i++)
      parts[i] = flushed(std::fma(from_bf16(a, 2 * k + i), from_bf16(b[k], 2 * n + i), parts[i]));
  return flushed(flushed(sum) + flushed(parts[0] + parts[1]));
}

template <int SUMS, int A, int B>
void dot_int8() {
  dot_all<uint32_t, SUMS, A, B>(add_int8<uint8_t>);
}

template <int SUMS, int A, int B>
void dot_signed() {
  dot_all<uint32_t, SUMS, A, B>(add_int8<int8_t>);
}

template <int SUMS, int A, int B>
void dot_bf16() {
  dot_all<float, SUMS, A, B>(add_bf16);
}

#undef ALONE

#endif

}  // namespace amx_tiles
}  // namespace kvcast
#endif
