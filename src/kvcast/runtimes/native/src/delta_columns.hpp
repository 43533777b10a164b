// The delta rule for some columns of a head's matrix, included by each set of instructions within its own options: all
// have the same order of sums, which is that of steps.
//
// No guard: what it defines is in the namespace that includes it.

template <int COUNT>
void delta_columns_of(const DeltaColumns& w) {
  for (int s = 0; s < w.positions; s++) {
    const float* const query = w.query + s * w.stride;
    const float* const key = w.key + s * w.stride;
    const float* const value = w.value + s * w.value_stride;
    float* const out = w.out + s * w.out_stride;
    const float kept = w.kept[s * w.gate_stride], share = w.share[s * w.gate_stride];
    float delta[COUNT] = {}, mixed[COUNT] = {};
    for (int i = 0; i < w.key_dim; i++) {
      float* const state = w.state + i * w.state_stride;
      const float k = key[i];
      for (int j = 0; j < COUNT; j++) {
        state[j] *= kept;
        delta[j] += k * state[j];
      }
    }
    for (int j = 0; j < COUNT; j++) delta[j] = (value[j] - delta[j]) * share;
    for (int i = 0; i < w.key_dim; i++) {
      float* const state = w.state + i * w.state_stride;
      const float k = key[i], q = query[i];
      for (int j = 0; j < COUNT; j++) {
        state[j] += k * delta[j];
        mixed[j] += q * state[j];
      }
    }
    for (int j = 0; j < COUNT; j++) out[j] = mixed[j];
  }
}

void delta_columns(const DeltaColumns& w) {
  if (w.columns == DELTA_COLUMNS) return delta_columns_of<DELTA_COLUMNS>(w);
  for (int j = 0; j < w.columns; j++) {
    DeltaColumns column = w;
    column.value += j;
    column.state += j;
    column.out += j;
    delta_columns_of<1>(column);
  }
}
