// The delta rule and the selective scan for some columns of a head's matrix, and a short convolution. Each instruction
// set includes this where its own instructions are allowed, so it includes nothing itself. The file that includes it
// has Vector and its arithmetic. No guard: what it defines is in the namespace that includes it.
//
// The state is read and written once for each position: its product with the next position's key is summed while it is
// written, in the same order as for a position alone.

template <bool CORRECTS, bool BY_CHANNEL, int VECTORS, bool WHOLE>
void rewrite(const StateColumns& w, int there) {
  const auto get = [&](const float* from) { return WHOLE ? load(from) : load(from, some(there)); };
  const auto put = [&](float* to, Vector x) { WHOLE ? store(to, x) : store(to, some(there), x); };
  Vector known[VECTORS];  // key matrix, decayed if by channel
  for (int z = 0; z < VECTORS; z++) known[z] = all(0);
  if (CORRECTS)
    for (int i = 0; i < w.key_dim; i++)
      for (int z = 0; z < VECTORS; z++)
        known[z] = multiply_add(all(BY_CHANNEL ? w.key[i] * w.kept[i] : w.key[i]),
                                get(w.state + i * w.state_stride + z * FLOATS), known[z]);
  for (int s = 0; s < w.positions; s++) {
    const float* const query = w.query + s * w.stride;
    const float* const key = w.key + s * w.stride;
    const float* const next = s + 1 < w.positions ? key + w.stride : key;
    const float* const value = w.value + s * w.value_stride;
    const float* const kept = w.kept + s * (BY_CHANNEL ? w.key_dim : 1);
    const float* const next_kept = s + 1 < w.positions ? kept + w.key_dim : kept;  // if by channel
    const Vector share = all(w.share[s]);
    Vector added[VECTORS], mixed[VECTORS];
    for (int z = 0; z < VECTORS; z++) {
      const Vector x = get(value + z * FLOATS);
      const Vector predicted = BY_CHANNEL ? known[z] : multiply(all(kept[0]), known[z]);
      added[z] = multiply(share, CORRECTS ? subtract(x, predicted) : x);
      mixed[z] = multiply(all(w.skip), x);
      known[z] = all(0);
    }
    for (int i = 0; i < w.key_dim; i++) {
      float* const state = w.state + i * w.state_stride;
      const Vector k = all(key[i]), q = all(query[i]), left = all(kept[BY_CHANNEL ? i : 0]);
      const Vector n = all(BY_CHANNEL ? next[i] * next_kept[i] : CORRECTS ? next[i] : 0);
      for (int z = 0; z < VECTORS; z++) {
        const Vector x = multiply_add(k, added[z], multiply(left, get(state + z * FLOATS)));
        put(state + z * FLOATS, x);
        mixed[z] = multiply_add(q, x, mixed[z]);
        if (CORRECTS) known[z] = multiply_add(n, x, known[z]);
      }
    }
    for (int z = 0; z < VECTORS; z++) put(w.out + s * w.out_stride + z * FLOATS, mixed[z]);
  }
}

template <bool CORRECTS, bool BY_CHANNEL>
void rewrite_columns(const StateColumns& w) {
  constexpr int VECTORS = FLOATS == 16 ? 2 : FLOATS == 1 ? 8 : 16 / FLOATS;  // whose sums fit into registers
  for (int j = 0; j < w.columns;) {
    StateColumns part = w;
    part.value += j;
    part.state += j;
    part.out += j;
    const int left = w.columns - j;
    if (left >= VECTORS * FLOATS) {
      rewrite<CORRECTS, BY_CHANNEL, VECTORS, true>(part, FLOATS);
      j += VECTORS * FLOATS;
    } else {
      rewrite<CORRECTS, BY_CHANNEL, 1, false>(part, left);
      j += FLOATS;
    }
  }
}

void state_columns(const StateColumns& w) {
  if (w.by_channel)
    rewrite_columns<true, true>(w);
  else if (w.corrects)
    rewrite_columns<true, false>(w);
  else
    rewrite_columns<false, false>(w);
}

// A short convolution at one position.
void convolve(const float* const* x, int length, const float* kernel, size_t stride, const float* bias, int count, float* out) {
  for (int c = 0; c < count; c += FLOATS) {
    const Some left = some(count - c);
    Vector sum = bias ? load(bias + c, left) : all(0);
    for (int i = 0; i < length; i++) sum = multiply_add(load(kernel + i * stride + c, left), load(x[i] + c, left), sum);
    store(out + c, left, sum);
  }
}
