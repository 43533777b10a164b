// Attention of an encoder with AVX2, in fp32.
#include "avx2/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

namespace {

#include "vec/encoder_attention.hpp"

}  // namespace

AVX2_END

}  // namespace with_avx2

const EncoderAttention avx2_encoder_attention = {with_avx2::head_bytes, with_avx2::pack_head, with_avx2::attend};

}  // namespace kvcast
#endif
