// Channels of a short convolution at one position. Each instruction set includes this where its own instructions are
// allowed, so it includes nothing itself. The file that includes it has Vector and its arithmetic. No guard: what it
// defines is in the namespace that includes it.

void convolve(const float* const* x, int length, const float* kernel, size_t stride, const float* bias, int count, float* out) {
  for (int c = 0; c < count; c += FLOATS) {
    const int left = count - c;
    Vector sum = bias ? load(bias + c, left) : all(0);
    for (int i = 0; i < length; i++) sum = multiply_add(load(kernel + i * stride + c, left), load(x[i] + c, left), sum);
    store(out + c, left, sum);
  }
}
