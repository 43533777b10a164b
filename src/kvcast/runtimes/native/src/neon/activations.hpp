// Activations with NEON, for the ends of products and for rows.
#pragma once
#include "neon/vec.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {

#include "vec/activations.hpp"

}  // namespace with_neon
}  // namespace kvcast
#endif
