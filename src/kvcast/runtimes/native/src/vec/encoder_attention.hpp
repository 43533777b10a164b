// Attention of an encoder in fp32: tiles of queries over chunks of positions. Each instruction set includes this where
// its own instructions are allowed, so it includes nothing itself. The file that includes it has Vector,
// its arithmetic and STRIP.
#pragma once

// A packed head: queries [t, D], times scale and log2(e); keys [T / STRIP, D, STRIP]; values [D / STRIP, T, STRIP].
// D is the head's size, filled up to whole strips with zeros; T the positions, filled up to whole blocks.
struct FloatHead {
  int positions, filled, width;  // t, T, D
  float *query, *key, *value;

  FloatHead(uint8_t* packed, int t, int head_dim)
      : positions(t),
        filled((t + BLOCK - 1) / BLOCK * BLOCK),
        width(padded(head_dim)),
        query(reinterpret_cast<float*>(packed)),
        key(query + part()),
        value(key + part()) {}

  explicit FloatHead(const EncoderHead& of) : FloatHead(of.packed, of.positions, of.head_dim) {}

  size_t part() const { return static_cast<size_t>(filled) * width; }
};

size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(float) * FloatHead(nullptr, positions, head_dim).part(); }

constexpr int PER_STRIP = STRIP / FLOATS;  // vectors
constexpr int CHUNK = 256;               // positions whose scores are held at once: 6 x 256 fit into L1

void pack_head(const EncoderHead& of, int first) {
  const FloatHead head(of);
  const Vector factor = all(of.scale * LOG2_E);
  for (int t = first; t < first + BLOCK; t++) {
    const int there = t < of.positions ? of.head_dim : 0;
    const size_t from = t < of.positions ? t * of.stride : 0;
    for (int d = 0; d < head.width; d += FLOATS) {
      store(head.query + static_cast<size_t>(t) * head.width + d, multiply(load(of.query + from + d, there - d), factor));
      store(head.value + (static_cast<size_t>(d / STRIP) * head.filled + t) * STRIP + d % STRIP,
            load(of.value + from + d, there - d));
      float column[FLOATS];
      store(column, load(of.key + from + d, there - d));
      float* keys = head.key + static_cast<size_t>(t / STRIP) * head.width * STRIP + t % STRIP;
      for (int i = 0; i < FLOATS; i++) keys[(d + i) * STRIP] = column[i];
    }
  }
}

template <int ROWS>
INLINE void zero(Vector sums[ROWS][PER_STRIP]) {
  for (int m = 0; m < ROWS; m++)
    for (int z = 0; z < PER_STRIP; z++) sums[m][z] = all(0);
}

// Scores of CHUNK positions at most; past the last position -inf.
template <int ROWS>
INLINE void score(const FloatHead& head, const float* query, int begin, int end, float scores[ROWS][CHUNK]) {
  for (int t = begin; t < end; t += STRIP) {
    Vector sums[ROWS][PER_STRIP];
    zero<ROWS>(sums);
    multiply_strip<ROWS>(head.key + static_cast<size_t>(t) * head.width, head.width, query, head.width, sums);
    for (int m = 0; m < ROWS; m++)
      for (int z = 0; z < PER_STRIP; z++) store(&scores[m][t - begin + z * FLOATS], sums[m][z]);
  }
  for (int m = 0; m < ROWS; m++)
    for (int t = std::max(begin, head.positions); t < end; t++) scores[m][t - begin] = -INFINITY;
}

// The softmax so far of one query.
struct Running {
  float most = -INFINITY, mass = 0;

  // Scores become shares; returns the factor on the sums so far.
  INLINE float take(float* scores, int count) {
    Vector x = load(scores);
    for (int i = FLOATS; i < count; i += FLOATS) x = greater(x, load(scores + i));
    const float next = std::max(most, greatest(x)), kept = std::exp2(most - next);
    const Vector peak = all(next);
    Vector sum = all(0);
    for (int i = 0; i < count; i += FLOATS) {
      const Vector share = exp2(subtract(load(scores + i), peak));
      sum = add(sum, share);
      store(scores + i, share);
    }
    mass = mass * kept + total(sum);
    most = next;
    return kept;
  }
};

template <int ROWS>
void attend_rows(const EncoderHead& of, int first) {
  const FloatHead head(of);
  const int head_dim = of.head_dim;
  const size_t stride = of.out_stride;
  float* out = of.out + first * stride;
  alignas(64) float scores[ROWS][CHUNK];
  Running softmax[ROWS];
  for (int begin = 0; begin < head.filled; begin += CHUNK) {
    const int end = std::min(begin + CHUNK, head.filled);
    score<ROWS>(head, head.query + static_cast<size_t>(first) * head.width, begin, end, scores);
    float kept[ROWS], factor[ROWS];
    for (int m = 0; m < ROWS; m++) {
      kept[m] = softmax[m].take(scores[m], end - begin);
      factor[m] = end == head.filled ? 1 / softmax[m].mass : 1.f;
    }
    for (int d = 0; d < head_dim; d += STRIP) {
      float* to = out + d;
      Vector sums[ROWS][PER_STRIP];
      zero<ROWS>(sums);
      if (begin)
        for (int m = 0; m < ROWS; m++)
          for (int z = 0; z < PER_STRIP; z++)
            sums[m][z] = multiply(load(to + m * stride + z * FLOATS, head_dim - d - z * FLOATS), all(kept[m]));
      const float* values = head.value + (static_cast<size_t>(d / STRIP) * head.filled + begin) * STRIP;
      multiply_strip<ROWS>(values, end - begin, scores[0], CHUNK, sums);
      for (int m = 0; m < ROWS; m++)
        for (int z = 0; z < PER_STRIP; z++)
          store(to + m * stride + z * FLOATS, head_dim - d - z * FLOATS, multiply(sums[m][z], all(factor[m])));
    }
  }
}

void attend(const EncoderHead& of, int first, int last) {
  int s = first;
  for (; s + 6 <= last; s += 6) attend_rows<6>(of, s);
  for (; s < last; s++) attend_rows<1>(of, s);
}

constexpr EncoderAttention ENCODER_ATTENTION = {head_bytes, pack_head, attend};
