// Attention over a part of positions, in fp32 throughout.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has Vector and its arithmetic, and
//   keys_at_once(queries): keys whose scores some queries take at once; slot(i): where `totals` wants the sums of the i-th total;
//   store_totals<QUERIES, KEYS>(sums, scores): the scores of KEYS keys for each of QUERIES queries.
#pragma once

constexpr int AT_ONCE = 6;  // queries that share values, so that the sums and the values fit into the registers

void rotate(const float* x, const float* cosines, const float* sines, int half, float* out) {
  for (int i = 0; i < half; i += FLOATS) {
    const Some there = some(half - i);
    const Vector a = load(x + i, there), b = load(x + half + i, there);
    const Vector c = load(cosines + i, there), s = load(sines + i, there);
    store(out + i, there, difference(a, c, b, s));
    store(out + half + i, there, multiply_add(b, c, multiply(a, s)));
  }
}

void store_codes(const float* x, int count, int8_t* to) {
  Peak peak{all(0)};
  for (int i = 0; i < count; i += FLOATS) peak.take(magnitude(load(x + i, some(count - i))));
  const float most = peak.value();
  const bool is_zero = most < SMALLEST;
  const float scale = is_zero ? 0.f : most / 127.f;
  const Vector inverse = all(is_zero ? 0.f : 127.f / most);
  for (int i = 0; i < count; i += FLOATS) {
    const Some there = some(count - i);
    store(to + i, there, multiply(load(x + i, there), inverse));
  }
  std::memcpy(to + count, &scale, sizeof scale);
}

void store_numbers(const float* x, int count, Number number, void* to) {
  if (number == Number::INT8) return store_codes(x, count, static_cast<int8_t*>(to));
  for (int i = 0; i < count; i += FLOATS) {
    const Some there = some(count - i);
    const Vector v = load(x + i, there);
    if (number == Number::F32)
      store(static_cast<float*>(to) + i, there, v);
    else
      store(static_cast<uint16_t*>(to) + i, there, v);
  }
}

// Scores of QUERIES queries against keys [count, d]. DIM is d; 0: any. Lanes are channels of a key. `scores` is filled
// past count, up to a multiple of FLOATS.
template <class T, int QUERIES, int DIM>
void score_keys(const T* key, int count, int head_dim, const float* query, float* scores) {
  constexpr int KEYS = keys_at_once(QUERIES);
  const int d = DIM ? DIM : head_dim, width = padded(d), whole = d / FLOATS * FLOATS;
  const Some rest = FLOATS == 16 ? some(d - whole) : 0;  // a mask is made once
  for (int t = 0; t < count; t += KEYS) {
    // The last keys stand in for keys past the end.
    const T* lines[KEYS];
    for (int i = 0; i < KEYS; i++) lines[i] = key + std::min(t + i, count - 1) * pitch<T>(d);
    fetch_ahead(key + t * pitch<T>(d), KEYS * pitch<T>(d) * sizeof(T));
    constexpr int ALL = QUERIES * KEYS > FLOATS ? QUERIES * KEYS : FLOATS;
    Vector sums[ALL];
    for (int i = 0; i < ALL; i++) sums[i] = all(0);
    for (int j = 0; j < whole; j += FLOATS) {
      Vector q[QUERIES];
      for (int m = 0; m < QUERIES; m++) q[m] = load(query + m * width + j);
      for (int i = 0; i < KEYS; i++) {
        const Vector k = load(lines[i] + j);
        for (int m = 0; m < QUERIES; m++) {
          Vector& sum = sums[slot(m * KEYS + i)];
          sum = multiply_add(k, q[m], sum);
        }
      }
    }
    if (whole < d)
      for (int i = 0; i < KEYS; i++) {
        const Vector k = load(lines[i] + whole, FLOATS == 16 ? rest : some(d - whole));
        for (int m = 0; m < QUERIES; m++) {
          Vector& sum = sums[slot(m * KEYS + i)];
          sum = multiply_add(k, load(query + m * width + whole), sum);
        }
      }
    store_totals<QUERIES, KEYS>(sums, scores + t);
  }
}

// Scores first .. last become shares, and scores around them up to whole vectors 0.
Softmax share(float* scores, int first, int last, const float* bias, float softcap) {
  const Vector nothing = all(-INFINITY);
  const int begin = first / FLOATS * FLOATS;
  Peak peak{nothing};
  for (int t = begin; t < last; t += FLOATS) {
    Vector x = load(scores + t);
    if (softcap != 0) {
      const Vector cap = all(softcap);
      x = multiply(cap, tanh(divide(x, cap)));
    }
    if (bias != nullptr) x = add(x, load_between(bias + t, first - t, last - t));
    x = select(between(first - t, last - t), x, nothing);
    peak.take(x);
    store(scores + t, x);
  }
  const float most = peak.value();
  const bool is_empty = most == -INFINITY;
  const Vector subtracted = all(is_empty ? 0.f : most);
  Vector sum = all(0);
  for (int t = begin; t < last; t += FLOATS) {
    const Vector x = multiply(subtract(load(scores + t), subtracted), all(LOG2_E));
    const Vector part = unless_less(x, all(-126), exp2(x));
    sum = add(sum, part);
    store(scores + t, part);
  }
  return {most, is_empty ? 0.f : total(sum)};
}

// mixed [ROWS, width] += shares [ROWS, SCORES] x values [count, d], of COLUMNS vectors of d, of which the last has
// `there` numbers.
template <class T, int ROWS, int COLUMNS>
void mix_values(const T* value, int count, int head_dim, const float* shares, float* mixed, Some there) {
  const int width = padded(head_dim);
  Vector sums[ROWS][COLUMNS];
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) sums[m][z] = load(mixed + m * width + z * FLOATS);
  for (int t = 0; t < count; t++, value += pitch<T>(head_dim)) {
    fetch_ahead(value, COLUMNS * FLOATS * sizeof(T));
    Vector v[COLUMNS];
    for (int z = 0; z < COLUMNS; z++) v[z] = COLUMNS == 1 ? load(value, there) : load(value + z * FLOATS);
    for (int m = 0; m < ROWS; m++) {
      const Vector factor = all(shares[m * SCORES + t]);
      for (int z = 0; z < COLUMNS; z++) sums[m][z] = multiply_add(v[z], factor, sums[m][z]);
    }
  }
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < COLUMNS; z++) store(mixed + m * width + z * FLOATS, sums[m][z]);
}

template <class T, int ROWS>
void mix_rows(const T* value, int count, int head_dim, const float* shares, float* mixed) {
  constexpr int COLUMNS = (FLOATS == 16 || ROWS == 1 ? 64 : ROWS == 2 ? 32 : 16) / FLOATS;  // whose sums fit into registers
  int d = 0;
  for (; d + COLUMNS * FLOATS <= head_dim; d += COLUMNS * FLOATS)
    mix_values<T, ROWS, COLUMNS>(value + d, count, head_dim, shares, mixed + d, some(FLOATS));
  for (; d < head_dim; d += FLOATS)
    mix_values<T, ROWS, 1>(value + d, count, head_dim, shares, mixed + d, some(head_dim - d));
}

// Scores of queries against keys [count, d]. DIM is d; 0: any.
template <class T, int DIM>
void score_queries(const T* key, int count, int head_dim, const float* query, int queries, float* scores) {
  const int width = padded(head_dim);
  while (queries > 0) {
    const int now = std::min(queries, 4);
    const auto take = now == 1   ? score_keys<T, 1, DIM>
                      : now == 2 ? score_keys<T, 2, DIM>
                      : now == 3 ? score_keys<T, 3, DIM>
                                 : score_keys<T, 4, DIM>;
    take(key, count, head_dim, query, scores);
    query += now * width;
    scores += now * SCORES;
    queries -= now;
  }
}

// Of positions first .. last of a part, over its two runs of neighbours.
template <class T, int ROWS>
void mix_range(const Part& part, int first, int last, const float* shares, float* mixed) {
  for (int i = 0, at = part.begin; i < 2; at += part.counts[i++]) {
    const int begin = std::max(first, at), end = std::min(last, at + part.counts[i]);
    if (begin < end)
      mix_rows<T, ROWS>(static_cast<const T*>(part.values[i]) + (begin - at) * pitch<T>(part.head_dim), end - begin, part.head_dim,
                        shares + begin, mixed);
  }
}

// Positions that all of ROWS queries see are taken for all at once, the others for each alone: in their
// order either way.
template <class T, int ROWS>
void mix(const Part& part, int query, const float* scores, float* mixed) {
  const int width = padded(part.head_dim), *first = part.first + query, *last = part.last + query;
  const float* shares = scores + query * SCORES;
  float* to = mixed + query * width;
  std::memset(to, 0, ROWS * width * sizeof(float));
  const int begin = *std::max_element(first, first + ROWS), end = *std::min_element(last, last + ROWS);
  if (begin >= end) {
    for (int m = 0; m < ROWS; m++) mix_range<T, 1>(part, first[m], last[m], shares + m * SCORES, to + m * width);
    return;
  }
  for (int m = 0; m < ROWS; m++) mix_range<T, 1>(part, first[m], begin, shares + m * SCORES, to + m * width);
  mix_range<T, ROWS>(part, begin, end, shares, to);
  for (int m = 0; m < ROWS; m++) mix_range<T, 1>(part, end, last[m], shares + m * SCORES, to + m * width);
}

template <class T>
constexpr void (*MIX[AT_ONCE])(const Part&, int, const float*, float*) = {mix<T, 1>, mix<T, 2>, mix<T, 3>,
                                                                         mix<T, 4>, mix<T, 5>, mix<T, 6>};

// The scales of lines of codes, stored after the codes.
void read_scales(const Part& part, const void* const lines[2], float* scales) {
  for (int i = 0, at = part.begin; i < 2; at += part.counts[i++])
    for (int t = 0; t < part.counts[i]; t++)
      std::memcpy(scales + at + t,
                  static_cast<const int8_t*>(lines[i]) + t * pitch<int8_t>(part.head_dim) + part.head_dim, sizeof(float));
}

// scores [n, SCORES] times the scales of their positions.
void times(const Part& part, const float* scales, float* scores) {
  const int end = part.begin + part.counts[0] + part.counts[1];
  for (int m = 0; m < part.queries; m++)
    for (int t = part.begin; t < end; t++) scores[m * SCORES + t] *= scales[t];
}

// The scales of keys and values; null where they are no codes.
struct Scales {
  float space[2][SCORES];
  const float *keys = nullptr, *values = nullptr;

  explicit Scales(const Part& part) {
    if (part.key_number == Number::INT8) read_scales(part, part.keys, space[0]), keys = space[0];
    if (part.value_number == Number::INT8) read_scales(part, part.values, space[1]), values = space[1];
  }
};

// Calls with(0 of the cache's element type).
template <class With>
INLINE void with_type(Number number, With&& with) {
  if (number == Number::INT8) return with(int8_t{});
  if (number == Number::F16) return with(uint16_t{});
  with(float{});
}

// From products of queries and keys to results.
void finish(const Part& part, const Scales& scales, float* scores, Softmax* softmax, float* mixed) {
  if (scales.keys) times(part, scales.keys, scores);
  for (int m = 0; m < part.queries; m++)
    softmax[m] = share(scores + m * SCORES, part.first[m], part.last[m], part.bias ? part.bias[m] : nullptr,
                       part.softcap);
  if (scales.values) times(part, scales.values, scores);
  with_type(part.value_number, [&](auto number) {
    for (int m = 0; m < part.queries; m += AT_ONCE)
      MIX<decltype(number)>[std::min(AT_ONCE, part.queries - m) - 1](part, m, scores, mixed);
  });
}
