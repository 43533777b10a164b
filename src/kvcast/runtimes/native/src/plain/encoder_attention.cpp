// Attention of an encoder in plain C++.
#include <algorithm>
#include <cmath>

#include "plain/plain.hpp"

namespace kvcast {
namespace {

// Queries, keys and values, each float [t, d].
size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(float) * positions * head_dim; }

void pack_head(const EncoderHead& of, int first) {
  float* to = reinterpret_cast<float*>(of.packed);
  const size_t part = static_cast<size_t>(of.positions) * of.head_dim;
  for (int t = first; t < std::min(first + BLOCK, of.positions); t++)
    for (int d = 0; d < of.head_dim; d++) {
      const size_t from = t * of.stride + d, at = static_cast<size_t>(t) * of.head_dim + d;
      to[at] = of.query[from] * of.scale;
      to[part + at] = of.key[from];
      to[2 * part + at] = of.value[from];
    }
}

// One pass, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).
void attend(const EncoderHead& of, int first, int last) {
  const int positions = of.positions, head_dim = of.head_dim;
  const size_t part = static_cast<size_t>(positions) * head_dim;
  const float* query = reinterpret_cast<const float*>(of.packed);
  const float *key = query + part, *value = key + part;
  for (int s = first; s < last; s++) {
    float* mixed = of.out + s * of.out_stride;
    float most = -INFINITY, total = 0;
    std::fill(mixed, mixed + head_dim, 0.f);
    for (int t = 0; t < positions; t++) {
      float score = 0;
      for (int d = 0; d < head_dim; d++) score += query[s * head_dim + d] * key[t * head_dim + d];
      const float next = std::max(most, score), kept = std::exp(most - next), share = std::exp(score - next);
      for (int d = 0; d < head_dim; d++) mixed[d] = mixed[d] * kept + share * value[t * head_dim + d];
      total = total * kept + share;
      most = next;
    }
    for (int d = 0; d < head_dim; d++) mixed[d] /= total;
  }
}

}  // namespace

const EncoderAttention plain_encoder_attention = {head_bytes, pack_head, attend};

}  // namespace kvcast
