// Norms and activations in plain C++.
#include <cmath>

#include "plain/plain.hpp"

namespace kvcast {

float activated(Activation activation, float x) {
  switch (activation) {
    case Activation::GELU: return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    case Activation::GELU_TANH: return 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::SILU: return x / (1 + std::exp(-x));
    case Activation::RELU: return x > 0 ? x : 0;
    case Activation::TANH: return std::tanh(x);
    case Activation::SIGMOID: return 1 / (1 + std::exp(-x));
    default: return x;
  }
}

namespace {

void layer_norm(const float* x, const float* gain, const float* bias, float epsilon, int width, float* out) {
  double sum = 0, squares = 0;
  for (int i = 0; i < width; i++) sum += x[i];
  const double mean = sum / width;
  for (int i = 0; i < width; i++) squares += (x[i] - mean) * (x[i] - mean);
  const double factor = 1 / std::sqrt(squares / width + epsilon);
  for (int i = 0; i < width; i++)
    out[i] = static_cast<float>((x[i] - mean) * factor * (gain ? gain[i] : 1) + (bias ? bias[i] : 0));
}

void rms_norm(const float* x, const float* gain, float epsilon, int width, float* out) {
  double squares = 0;
  for (int i = 0; i < width; i++) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1 / std::sqrt(squares / width + epsilon);
  for (int i = 0; i < width; i++) out[i] = static_cast<float>(x[i] * factor * (gain ? gain[i] : 1));
}

void gate(Activation activation, const float* gate, const float* up, int count, float* out) {
  for (int i = 0; i < count; i++) out[i] = activated(activation, gate[i]) * up[i];
}

using Vector = float;
constexpr int FLOATS = 1;  // of a Vector

using Some = int;

inline Some some(int count) { return count; }
inline float all(float x) { return x; }
inline float load(const float* from, int = 1) { return *from; }
inline void store(float* to, float x) { *to = x; }
inline void store(float* to, int, float x) { *to = x; }
inline float multiply(float a, float b) { return a * b; }
inline float subtract(float a, float b) { return a - b; }
inline float multiply_add(float a, float b, float c) { return a * b + c; }

#include "vec/states.hpp"

}  // namespace

const Rows plain_rows = {layer_norm, rms_norm, gate, state_columns, convolve};

}  // namespace kvcast
