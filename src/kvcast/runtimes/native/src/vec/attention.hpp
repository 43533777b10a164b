// From a part's scores of many queries to its results: softmax, and values mixed by it.
//
// Each instruction set includes this where its own instructions are allowed, so it includes nothing itself and
// defines nothing that two files could share. The file that includes it has
//   AT_ONCE: queries that share values;
//   pitch<T>(head_dim): numbers from one line to the next; after codes lies their scale;
//   score_keys<T, QUERIES, DIM>(key, count, head_dim, query, scores): scores of up to 4 queries;
//   share(scores, first, last, bias, softcap): scores of one query become shares;
//   mix_rows<T, ROWS>(value, count, head_dim, shares, mixed): mixed [ROWS, width] += shares x values.
#pragma once

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

// The scales of lines of codes, which lie after these.
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

// Calls with(0 of the type that holds the numbers).
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
