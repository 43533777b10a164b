// AVX-512, and products of many rows and an encoder's attention on AMX's tiles: Intel from Sapphire Rapids on.
#include "amx.hpp"
#if defined(KVCAST_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace kvcast {
namespace {

#if defined(KVCAST_EMULATE_AMX)

bool run_here() { return avx512.run_here(); }

#else

bool has_tiles() {
  constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24, INT8 = 1u << 25, ALL = BF16 | TILE | INT8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & ALL) == ALL;
}

// That the instruction is there is known from AVX-512.
bool system_keeps_tiles() {
  constexpr unsigned SHAPES = 1u << 17, TILES = 1u << 18;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & SHAPES) && (low & TILES);
}

// Linux keeps no room for tiles until a process asks for it; threads and forks inherit the permission. From then on
// tiles may have to lie on a thread's stack for signals: where one is too small, the permission is refused.
bool system_grants_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of asm/prctl.h, where newer systems alone have it
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool run_here() { return avx512.run_here() && has_tiles() && system_keeps_tiles() && system_grants_tiles(); }

#endif

}  // namespace

const Instructions amx = {"amx", run_here, amx_products, avx512_rows, avx512_attention, amx_encoder_attention, avx512_scores};

}  // namespace kvcast
#endif
