// The products of attention of prompts with AVX-512's VNNI.
#include "avx512/prompt.hpp"
#if defined(__x86_64__)

namespace kvcast {

AVX512_BEGIN

namespace {

constexpr int ROWS = 8;  // positions, or channels of a head, whose sums are in registers: 8 x 2

// int32 sums += codes (unsigned) x four signed ones. GCC 12 moves sums to other registers and back around the intrinsic.
INLINE void dot(__m512i& sum, __m512i codes, __m512i four) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(four));
}

// sums [ROWS, STRIP] += the products of `count` fours of codes: those of a strip [count, STRIP, 4], and of rows that lie
// some bytes apart.
INLINE void multiply(const void* strip, int count, const int8_t* fours, size_t row, size_t next, __m512i (&sums)[ROWS][2]) {
  const uint8_t* codes = static_cast<const uint8_t*>(strip);
  for (int k = 0; k < count; k++, codes += STRIP * FOUR, fours += next) {
    const __m512i a = _mm512_load_si512(codes), b = _mm512_load_si512(codes + LANES * FOUR);
    for (int i = 0; i < ROWS; i++) {
      int32_t bits;
      std::memcpy(&bits, fours + i * row, FOUR);
      const __m512i four = _mm512_set1_epi32(bits);
      dot(sums[i][0], a, four);
      dot(sums[i][1], b, four);
    }
  }
}

INLINE void store(const __m512i (&sums)[ROWS][2], void* to) {
  for (int i = 0; i < ROWS; i++)
    for (int z = 0; z < 2; z++) _mm512_store_si512(static_cast<int32_t*>(to) + i * STRIP + z * LANES, sums[i][z]);
}

// Values lie in strips of ROWS numbers of a head: [head_width / ROWS, PART / 4, ROWS, 4].
struct Dots {
  static constexpr int CODES = LANES, POSITIONS = ROWS, NUMBERS = ROWS, ROOM = 0;
  static constexpr int ZERO = 128;  // the operand multiplied by signed key codes is unsigned

  static void prepare() {}
  static void release() {}

  static INLINE int8_t* value_at(const PromptPart& part, int t, int d) {
    return part.value + static_cast<size_t>(d) * PART + t * ROWS;
  }

  // Of positions t .. t + 4 the codes of numbers d .. d + LANES.
  static INLINE void store_values(const PromptPart& part, int t, int d, __m512i fours, int32_t (*)[LANES]) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(value_at(part, t, d)), _mm512_castsi512_si256(fours));
    _mm256_store_si256(reinterpret_cast<__m256i*>(value_at(part, t, d + ROWS)), _mm512_extracti64x4_epi64(fours, 1));
  }

  // int32 [POSITIONS, STRIP]: products of a strip's queries and keys t .. t + POSITIONS.
  static INLINE void multiply_keys(const PromptPart& part, const uint8_t* query, int t, void* to) {
    __m512i sums[ROWS][2];
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_set1_epi32(part.key_offset[t + i]);
    multiply(query, part.width / FOUR, part.key + static_cast<size_t>(t) * part.width, part.width, FOUR, sums);
    store(sums, to);
  }

  // Sums of shares times values, of numbers d .. d + NUMBERS of a head.
  static INLINE void multiply_values(const PromptPart& part, const float* shares, int begin, int end, int d,
                                     int32_t (&to)[NUMBERS][STRIP]) {
    __m512i sums[ROWS][2];
    for (int i = 0; i < ROWS; i++) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
    multiply(shares + begin / FOUR * STRIP, (end - begin) / FOUR, value_at(part, begin, d), FOUR, ROWS * FOUR, sums);
    store(sums, to);
  }
};

}  // namespace

AVX512_END

const PromptAttention avx512_prompt_attention = PROMPT_ATTENTION<Dots>;

}  // namespace kvcast
#endif
