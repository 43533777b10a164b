// Which of x86's instructions run here, and who made the processor: by the processor's CPUID, and by the registers that the system
// keeps (XGETBV). Compilers' own __builtin_cpu_supports needs a table in a library of theirs, which a linker for
// Windows is not given, and knows other names in each version.
#pragma once
#if defined(__x86_64__)

namespace kvcast {

struct X86 {
  bool intel = false;        // who made it
  bool avx2 = false;         // with FMA and F16C
  bool avx_vnni = false;     // VNNI in AVX2's encoding
  bool avx512 = false;       // F, BW and VL, and `avx2`
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool amx = false;          // tiles, int8 and bf16; the system has to grant them yet
};

const X86& x86();

}  // namespace kvcast
#endif
