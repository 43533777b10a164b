// AVX-512, and products of many rows and an encoder's attention on AMX's tiles: Intel from Sapphire Rapids on.
#include "amx.hpp"
#if defined(KVCAST_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#include "x86.hpp"

namespace kvcast {
namespace {

#if defined(KVCAST_EMULATE_AMX)

bool run_here() { return avx512_bf16.run_here(); }

#else

// Linux keeps no room for tiles until a process asks for it; threads and forks inherit the permission. From then on
// tiles may have to lie on a thread's stack for signals: where one is too small, the permission is refused.
bool system_grants_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of asm/prctl.h, where newer systems alone have it
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool run_here() { return avx512_bf16.run_here() && x86().amx && system_grants_tiles(); }

#endif

}  // namespace

const Instructions amx = {"amx", run_here, amx_products, avx512_rows, avx512_attention, amx_encoder_attention, avx512_scores, avx512_reading};

}  // namespace kvcast
#endif
