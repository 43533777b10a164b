#include "cpuid.hpp"
#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#include <initializer_list>

namespace kvcast {
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;

  // Zeros for a leaf that the processor does not know.
  Registers(unsigned leaf, unsigned subleaf) {
    if (!__get_cpuid_count(leaf, subleaf, &a, &b, &c, &d)) a = b = c = d = 0;
  }
};

constexpr bool has(uint64_t bits, std::initializer_list<int> wanted) {
  for (int bit : wanted)
    if (!(bits >> bit & 1)) return false;
  return true;
}

// Whose registers the system keeps when it takes a thread off its core.
uint64_t kept_registers() {
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

X86 find() {
  constexpr int FMA = 12, OSXSAVE = 27, F16C = 29;  // leaf 1, c
  constexpr int AVX2 = 5, AVX512F = 16, AVX512BW = 30, AVX512VL = 31;  // leaf 7, b
  constexpr int AVX512_VNNI = 11;  // leaf 7, c
  constexpr int AMX_BF16 = 22, AMX_TILE = 24, AMX_INT8 = 25;  // leaf 7, d
  constexpr int AVX_VNNI = 4, AVX512_BF16 = 5;  // leaf 7, second part, a
  constexpr int SSE_STATE = 1, AVX_STATE = 2, MASKS = 5, UPPER_HALVES = 6, UPPER_REGISTERS = 7;
  constexpr int TILE_SHAPES = 17, TILES = 18;
  constexpr unsigned GENU = 0x756e6547;  // leaf 0, b: how a name begins, "GenuineIntel"
  X86 features;
  features.intel = Registers(0, 0).b == GENU;
  const Registers leaf_1(1, 0), leaf_7(7, 0);
  if (!has(leaf_1.c, {OSXSAVE})) return features;
  const unsigned more = leaf_7.a >= 1 ? Registers(7, 1).a : 0;
  const uint64_t kept = kept_registers();
  features.avx2 = has(kept, {SSE_STATE, AVX_STATE}) && has(leaf_1.c, {FMA, F16C}) && has(leaf_7.b, {AVX2});
  features.avx_vnni = features.avx2 && has(more, {AVX_VNNI});
  features.avx512 = features.avx2 && has(kept, {MASKS, UPPER_HALVES, UPPER_REGISTERS}) &&
                 has(leaf_7.b, {AVX512F, AVX512BW, AVX512VL});
  features.avx512_vnni = features.avx512 && has(leaf_7.c, {AVX512_VNNI});
  features.avx512_bf16 = features.avx512 && has(more, {AVX512_BF16});
  features.amx = has(kept, {TILE_SHAPES, TILES}) && has(leaf_7.d, {AMX_BF16, AMX_TILE, AMX_INT8});
  return features;
}

}  // namespace

const X86& x86() {
  static const X86 features = find();
  return features;
}

}  // namespace kvcast
#endif
