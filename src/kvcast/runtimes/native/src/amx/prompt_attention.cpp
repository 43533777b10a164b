// The products of attention of prompts with AMX.
#include "amx/amx.hpp"
#include "avx512/prompt.hpp"
#if defined(KVCAST_AMX)

namespace kvcast {

AVX512_BEGIN

namespace {

using namespace amx_tiles;

// AMX's tiles: sums (0, 1), codes of keys or values (2), those of a strip's queries or shares (3, 4).
//
// Values in tile layout: [PART / 64, head_width, 64].
struct Dots {
  static constexpr int CODES = ROW_BYTES, POSITIONS = ROW_BYTES, NUMBERS = ROWS, ROOM = ROWS;
  static constexpr int ZERO = 0;

  static void prepare() {
    Shapes shapes;
    for (int tile = 0; tile < 5; tile++) shapes.set(tile, ROWS, ROW_BYTES);
    set_shapes(shapes);
  }

  static void release() { amx_tiles::release(); }

  static INLINE int8_t* value_at(const PromptPart& part, int t, int d) {
    return part.value + static_cast<size_t>(t) * part.head_width + d * ROW_BYTES;
  }

  // Of positions t .. t + 4 the codes of numbers d .. d + LANES. They wait in `room` for all that a tile's rows have.
  static INLINE void store_values(const PromptPart& part, int t, int d, __m512i fours, int32_t (*room)[LANES]) {
    const int k = t % ROW_BYTES / FOUR;
    _mm512_store_si512(room[k], fours);
    if (k + 1 < ROWS) return;
    __m512 rows[ROWS];
    for (int i = 0; i < ROWS; i++) rows[i] = _mm512_castsi512_ps(_mm512_load_si512(room[i]));
    transpose(rows);
    int8_t* to = value_at(part, t / ROW_BYTES * ROW_BYTES, d);
    for (int i = 0; i < ROWS; i++) _mm512_store_ps(to + i * ROW_BYTES, rows[i]);
  }

  // int32 [POSITIONS, STRIP]: products of a strip's queries and keys t .. t + POSITIONS.
  static INLINE void multiply_keys(const PromptPart& part, const uint8_t* query, int t, float* to) {
    for (int row = 0; row < POSITIONS; row += ROWS) {
      zero<0>();
      zero<1>();
      for (int k = 0; k < part.width; k += ROW_BYTES) {
        load<2>(part.key + static_cast<size_t>(t + row) * part.width + k, part.width);
        load<3>(query + k * STRIP, STRIP * FOUR);
        load<4>(query + k * STRIP + LANES * FOUR, STRIP * FOUR);
        dot_signed<0, 2, 3>();
        dot_signed<1, 2, 4>();
      }
      store_sums(to + row * STRIP);
    }
  }

  // Sums of shares times values, of numbers d .. d + NUMBERS of a head.
  static INLINE void multiply_values(const PromptPart& part, const float* shares, int begin, int end, int d,
                                     int32_t (&to)[NUMBERS][STRIP]) {
    zero<0>();
    zero<1>();
    for (int t = begin; t < end; t += ROW_BYTES) {
      load<2>(value_at(part, t, d), ROW_BYTES);
      load<3>(shares + t / FOUR * STRIP, STRIP * FOUR);
      load<4>(shares + t / FOUR * STRIP + LANES, STRIP * FOUR);
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
