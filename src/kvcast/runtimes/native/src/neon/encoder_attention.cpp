// Attention of an encoder with NEON, in fp32.
#include "neon/vec.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {
namespace {

#include "vec/encoder_attention.hpp"

}  // namespace
}  // namespace with_neon

const EncoderAttention neon_encoder_attention = {with_neon::head_bytes, with_neon::pack_head, with_neon::attend};

}  // namespace kvcast
#endif
