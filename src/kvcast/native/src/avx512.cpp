// AVX-512 with VNNI (int8 products, an encoder's scores) and BF16 (its shares): Intel from Cooper Lake on, AMD from Zen 4 on.
#include "avx512.hpp"
#if defined(__x86_64__)
#include "x86.hpp"

namespace kvcast {
namespace {

bool run_here() { return ALIGNED_STACK && x86().avx512_vnni && x86().avx512_bf16; }

}  // namespace

const Instructions avx512 = {"avx512_bf16", run_here, avx512_products, avx512_rows, avx512_attention, avx512_encoder_attention, avx512_scores};

}  // namespace kvcast
#endif
