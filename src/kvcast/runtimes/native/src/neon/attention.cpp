// Attention over a part of positions with NEON, in fp32 throughout.
#include "neon/vec.hpp"
#if defined(__AARCH64EL__)

namespace kvcast {
namespace with_neon {
namespace {

// The total of each of 4 vectors, in order. Each is summed in the same order, whatever its place.
INLINE float32x4_t totals(const float32x4_t x[4]) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }

constexpr int keys_at_once(int) { return 4; }
constexpr int slot(int i) { return i; }

template <int QUERIES, int KEYS>
INLINE void store_totals(const float32x4_t* sums, float* scores) {
  for (int m = 0; m < QUERIES; m++) vst1q_f32(scores + m * SCORES, totals(sums + m * KEYS));
}

#include "vec/attention.hpp"

template <class T>
void score(const Part& part, float* scores) {
  const auto take = part.head_dim == 64 ? score_queries<T, 64> : score_queries<T, 0>;
  const auto score_one = [&](int i, int at) {
    take(static_cast<const T*>(part.keys[i]), part.counts[i], part.head_dim, part.query, part.queries, scores + at);
  };
  // Not a loop: GCC 12 for ARM assumes that one writes nothing, and drops calls of this.
  score_one(0, part.begin);
  score_one(1, part.begin + part.counts[0]);
}

void attend(const Part& part, float* scores, Softmax* softmax, float* mixed) {
  const Scales scales(part);
  with_type(part.key_number, [&](auto number) { score<decltype(number)>(part, scores); });
  finish(part, scales, scores, softmax, mixed);
}

}  // namespace
}  // namespace with_neon

const Attention neon_attention = {with_neon::rotate, with_neon::store_numbers, with_neon::attend};

}  // namespace kvcast
#endif
