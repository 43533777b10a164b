// The products of attention of prompts with AMX.
#include "amx.hpp"
#include "avx512_prompt.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;

// AMX's tiles: sums (0, 1), codes of keys or values (2), those of a strip's queries or shares (3, 4).
//
// Values lie as tiles have them: [PART / 64, head_width, 64].
struct Dots {
  static constexpr int CODES = ROW_BYTES, POSITIONS = ROW_BYTES, NUMBERS = ROWS;
  static constexpr int ZERO = 0;

  static void prepare() {
    Shapes shapes;
    for (int tile = 0; tile < 5; tile++) shapes.set(tile, ROWS, ROW_BYTES);
    set_shapes(shapes);
  }

  static void release() { amx_tiles::release(); }

  static INLINE int8_t* value_at(const PromptSpace& space, int t, int d) {
    return space.value + static_cast<size_t>(t) * space.head_width + d * ROW_BYTES;
  }

  // Of positions t .. t + 4 the codes of numbers d .. d + LANES; t is 0, 4, .. in turn.
  static INLINE void store_values(const PromptSpace& space, int t, int d, __m512i fours) {
    const int k = t % ROW_BYTES / FOUR;
    int32_t* const all = space.fours + d;
    _mm512_store_si512(all + k * space.head_width, fours);
    if (k + 1 < ROWS) return;
    __m512 rows[ROWS];
    for (int i = 0; i < ROWS; i++) rows[i] = _mm512_castsi512_ps(_mm512_load_si512(all + i * space.head_width));
    transpose(rows);
    int8_t* to = value_at(space, t / ROW_BYTES * ROW_BYTES, d);
    for (int i = 0; i < ROWS; i++) _mm512_store_ps(to + i * ROW_BYTES, rows[i]);
  }

  // Products of a strip's queries and keys t .. t + POSITIONS, int32 in the place of their scores.
  static INLINE void multiply_keys(const PromptSpace& space, const uint8_t* query, int t) {
    for (int row = t; row < t + POSITIONS; row += ROWS) {
      zero<0>();
      zero<1>();
      for (int k = 0; k < space.width; k += ROW_BYTES) {
        load<2>(space.key + static_cast<size_t>(row) * space.width + k, space.width);
        load<3>(query + k * STRIP, STRIP * FOUR);
        load<4>(query + k * STRIP + LANES * FOUR, STRIP * FOUR);
        dot_signed<0, 2, 3>();
        dot_signed<1, 2, 4>();
      }
      store_sums(space.scores + row * STRIP);
    }
  }

  // Sums of shares times values, of numbers d .. d + NUMBERS of a head.
  static INLINE void multiply_values(const PromptSpace& space, int begin, int end, int d, int32_t (&to)[NUMBERS][STRIP]) {
    zero<0>();
    zero<1>();
    for (int t = begin; t < end; t += ROW_BYTES) {
      const float* shares = space.scores + t / FOUR * STRIP;
      load<2>(value_at(space, t, d), ROW_BYTES);
      load<3>(shares, STRIP * FOUR);
      load<4>(shares + LANES, STRIP * FOUR);
      dot_int8<0, 2, 3>();
      dot_int8<1, 2, 4>();
    }
    store_sums(to);
  }

  static INLINE void store_sums(void* to) {
    store<0>(to, STRIP * sizeof(int32_t));
    store<1>(static_cast<int32_t*>(to) + LANES, STRIP * sizeof(int32_t));
  }
};

}  // namespace

AVX512_END

const PromptAttention amx_prompt_attention = PROMPT_ATTENTION<Dots>;

}  // namespace kvcast
#endif
