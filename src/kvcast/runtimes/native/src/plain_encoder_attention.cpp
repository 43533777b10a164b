// Attention of an encoder in plain C++.
#include <algorithm>
#include <cmath>

#include "plain.hpp"

namespace kvcast {
namespace {

// Queries, keys and values, each float [t, d].
size_t head_bytes(int positions, int head_dim) { return 3 * sizeof(float) * positions * head_dim; }

void pack_head(const float* query, const float* key, const float* value, size_t stride, int positions, int head_dim,
               float scale, int first, uint8_t* head) {
  float* to = reinterpret_cast<float*>(head);
  const size_t part = static_cast<size_t>(positions) * head_dim;
  for (int t = first; t < std::min(first + BLOCK, positions); t++)
    for (int d = 0; d < head_dim; d++) {
      const size_t from = t * stride + d, at = static_cast<size_t>(t) * head_dim + d;
      to[at] = query[from] * scale;
      to[part + at] = key[from];
      to[2 * part + at] = value[from];
    }
}

// One pass, with a running maximum (Milakov and Gimelshein, arXiv:1805.02867).
void attend(const uint8_t* head, int positions, int head_dim, int first, int last, float* out, size_t stride) {
  const size_t part = static_cast<size_t>(positions) * head_dim;
  const float* query = reinterpret_cast<const float*>(head);
  const float *key = query + part, *value = key + part;
  for (int s = first; s < last; s++) {
    float* mixed = out + s * stride;
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
