// Activations with AVX2, for the ends of products and for rows.
#pragma once
#include "avx2/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

#include "vec/activations.hpp"

AVX2_END

}  // namespace with_avx2
}  // namespace kvcast
#endif
