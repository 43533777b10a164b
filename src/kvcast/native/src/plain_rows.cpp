// Norms and activations in plain C++.
#include <cmath>

#include "plain.hpp"

namespace kvcast {
namespace {

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  double sum = 0, squares = 0;
  for (int i = 0; i < width; i++) sum += x[i];
  const double mean = sum / width;
  for (int i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1 / std::sqrt(squares / width + epsilon);
  for (int i = 0; i < width; i++) out[i] = static_cast<float>((x[i] - mean) * factor * gain[i] + bias[i]);
}

void gelu(float* x, int count) {
  for (int i = 0; i < count; i++) x[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f));
}

}  // namespace

const Rows plain_rows = {layer_norm, gelu};

}  // namespace kvcast
