// AVX-512 with VNNI (int8 products, an encoder's scores): Intel from Cascade Lake on, AMD from Zen 4 on. And the set
// that has BF16 as well (an encoder's shares; Intel from Cooper Lake on but for some, AMD from Zen 4 on).
#include "avx512.hpp"
#if defined(__x86_64__)
#include "x86.hpp"

namespace kvcast {
namespace {

bool runs_vnni() { return ALIGNED_STACK && x86().avx512_vnni; }
bool runs_bf16() { return runs_vnni() && x86().avx512_bf16; }

}  // namespace

const Instructions avx512_bf16 = {"avx512_bf16", runs_bf16, avx512_products, avx512_rows, avx512_attention,
                                  avx512_bf16_encoder_attention, avx512_scores, avx512_reading};
const Instructions avx512_vnni = {"avx512_vnni", runs_vnni, avx512_products, avx512_rows, avx512_attention,
                                  avx512_encoder_attention, avx512_scores, avx512_reading};

}  // namespace kvcast
#endif
