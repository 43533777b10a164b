// Activations with AVX2, for the ends of products and for rows.
#pragma once
#include "avx2.hpp"
#if defined(__x86_64__)

namespace kvcast {
namespace with_avx2 {

AVX2_BEGIN

#include "activations.hpp"

AVX2_END

}  // namespace with_avx2
}  // namespace kvcast
#endif
