// Activations with AVX-512, for the ends of products and for rows.
#pragma once
#include "avx512/vec.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

#include "vec/activations.hpp"

AVX512_END

}  // namespace kvcast
#endif
