// GEMM and GEMV with AVX2 and VNNI: codes are stored + 128, which a row's offset takes back.
//
// With KVCAST_EMULATE_AVX_VNNI the same in AVX-512's encoding, for tests where no processor has AVX2's.
#include "avx2/vec.hpp"
#include "halves.hpp"
#if defined(KVCAST_AVX_VNNI)

#if defined(KVCAST_EMULATE_AVX_VNNI)
#define DOT "vpdpbusd"
#else
#define DOT "%{vex%} vpdpbusd"
#endif

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

constexpr uint8_t SIGNS = 0x80;

INLINE __m256i begin(int32_t offset) { return _mm256_set1_epi32(offset); }

// In assembly, which needs no function that is compiled for processors with VNNI alone.
INLINE void add(__m256i& sum, __m256i weights, __m256i row) { asm(DOT " %2, %1, %0" : "+x"(sum) : "x"(weights), "x"(row)); }

INLINE void add_sixes(__m256i& sum, __m256i weights, __m256i row) { add(sum, weights, row); }
INLINE void add_nibbles(__m256i& sum, __m256i weights, __m256i row) { add(sum, weights, row); }
INLINE __m256i end_nibbles(__m256i sum) { return sum; }

#include "avx2/gemm.hpp"

}  // namespace

AVX2_END

}  // namespace with_avx2

const Gemm avx2_vnni_gemm = with_avx2::GEMM;

}  // namespace kvcast
#endif
