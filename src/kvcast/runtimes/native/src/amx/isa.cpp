// AVX-512, and products of many rows and attention of encoders and prompts on AMX's tiles: Intel from Sapphire Rapids on.
#include "amx/amx.hpp"
#if defined(KVCAST_AMX)
#include <sys/syscall.h>
#include <unistd.h>

#include "cpuid.hpp"

namespace kvcast {
namespace {

// Four tiles of sums: no tile product waits for another.
double dot_int8(int64_t turns) {
  using namespace amx_tiles;
  Shapes shapes;
  for (int tile = 0; tile < TILES; tile++) shapes.set(tile, ROWS, ROW_BYTES);
  set_shapes(shapes);
  zero<0>(), zero<1>(), zero<2>(), zero<3>(), zero<4>(), zero<5>(), zero<6>(), zero<7>();
  for (int64_t turn = 0; turn < turns; turn++) {
    amx_tiles::dot_int8<0, 4, 6>();
    amx_tiles::dot_int8<1, 4, 7>();
    amx_tiles::dot_int8<2, 5, 6>();
    amx_tiles::dot_int8<3, 5, 7>();
  }
  release();
  return 2. * 4 * ROWS * 16 * ROW_BYTES * turns;
}

const Peaks peaks = {dot_int8, avx512_peaks.fp32};

#if defined(KVCAST_EMULATE_AMX)

bool run_here() { return avx512_bf16.run_here(); }

#else

// Linux keeps no room for tiles until a process asks for it; threads and forks inherit the permission. From then on
// tiles are saved on a thread's signal stack: if that is too small, the permission is refused.
bool system_grants_tiles() {
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of asm/prctl.h, where newer systems alone have it
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool run_here() { return avx512_bf16.run_here() && x86().amx && system_grants_tiles(); }

#endif

}  // namespace

const Instructions amx = {"amx", "GEMM in AMX, of up to 12 rows in AVX-512 VNNI; attention in AMX: of prompts in int8, of encoders in int8 and bf16; of steps in fp32 (AVX-512)", run_here, peaks, amx_gemm, avx512_rows, avx512_attention, amx_encoder_attention,
                          avx512_scores, avx512_reading, &amx_prompt_attention};

}  // namespace kvcast
#endif
