// AVX2 with FMA and F16C: Intel from Haswell on, AMD from Excavator on.
#include "avx2.hpp"
#if defined(__x86_64__)
#include "x86.hpp"

namespace kvcast {
namespace {

bool run_here() { return ALIGNED_STACK && x86().avx2; }

}  // namespace

const Instructions avx2 = {"avx2", run_here, avx2_products, avx2_rows, avx2_attention, avx2_encoder_attention, avx2_scores};

}  // namespace kvcast
#endif
