// AVX2 with FMA and F16C: Intel from Haswell on, AMD from Excavator on. And the set that has VNNI as well, for
// products of int8 and int4 (Intel from Alder Lake on, AMD from Zen 5 on).
#include "avx2.hpp"
#if defined(__x86_64__)
#include "x86.hpp"

namespace kvcast {
namespace {

bool runs_avx2() { return ALIGNED_STACK && x86().avx2; }

#if defined(KVCAST_EMULATE_AVX_VNNI)
bool runs_vnni() { return runs_avx2() && x86().avx512_vnni; }
#else
[[maybe_unused]] bool runs_vnni() { return runs_avx2() && x86().avx_vnni; }
#endif

}  // namespace

const Instructions avx2 = {"avx2", runs_avx2, avx2_products, avx2_rows, avx2_attention, avx2_encoder_attention, avx2_scores, avx2_reading};
#if defined(KVCAST_AVX_VNNI)
const Instructions avx2_vnni = {"avx2_vnni", runs_vnni, avx2_vnni_products, avx2_rows, avx2_attention,
                                avx2_encoder_attention, avx2_scores, avx2_reading};
#endif

}  // namespace kvcast
#endif
