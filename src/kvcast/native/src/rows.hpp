// What happens to rows of activations between products: norms and gates, as floats and rounded.
#pragma once
#include <cstddef>

#include "machine.hpp"
#include "products.hpp"

namespace kvcast {

// x [rows, width] with a stride; `out` or `to` may be null.
void layer_norm(Machine&, const float* x, size_t stride, int rows, int width, const float* gain, const float* bias,
                float epsilon, float* out, size_t out_stride, const Rounded* to);

// `gain` may be null.
void rms_norm(Machine&, const float* x, size_t stride, int rows, int width, const float* gain, float epsilon,
              float* out, size_t out_stride, const Rounded* to);

// activation(gate) * up; both have the same stride.
void gated(Machine&, const float* gate, const float* up, size_t stride, int rows, int width, Activation, float* out,
           size_t out_stride, const Rounded* to);

}  // namespace kvcast
