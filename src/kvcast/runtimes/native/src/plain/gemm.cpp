// GEMM and GEMV in plain C++: they run everywhere, and every other instruction set is held against them.
//
// Sums of the int8 and int4 formats are taken in the same order everywhere and fused as on all processors
// that have it, so results equal the other instruction sets' bit for bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "halves.hpp"
#include "plain/plain.hpp"

namespace kvcast {
namespace {

void round(const float* x, int count, const Rounded& to) {
  float most = 0;
  for (int i = 0; i < count && !std::isnan(most); i++) most = std::isnan(x[i]) ? x[i] : std::max(most, std::fabs(x[i]));
  const bool is_zero = most < SMALLEST;
  const float inverse = most >= SMALLEST ? 127.f / most : 0.f;
  // NaN becomes -127: it is not greater.
  for (int i = 0; i < BLOCK; i++)
    to.codes[i] = i < count ? static_cast<int8_t>(std::max(-127.f, std::nearbyint(x[i] * inverse))) : 0;
  *to.scales = is_zero ? 0.f : most / 127.f;
  for (int g = 0; g < BLOCK / FINE; g++) {
    int32_t sum = 0;
    for (int i = g * FINE; i < (g + 1) * FINE; i++) sum += to.codes[i];
    to.fine[g] = -128 * sum;
  }
  for (int g = 0; g < BLOCK / GROUP; g++) to.offsets[g] = to.fine[2 * g] + to.fine[2 * g + 1];
}

void finish(const float* x, int count, const Epilogue& epilogue) {
  float results[BLOCK];
  for (int i = 0; i < count; i++) {
    results[i] = activated(epilogue.activation, x[i]);
    if (epilogue.residual) results[i] += epilogue.residual[i];
  }
  if (epilogue.out) std::copy_n(results, count, epilogue.out);
  if (epilogue.to) round(results, count, *epilogue.to);
}

// Copies `count` values, and pads with zeros to BLOCK.
void copy_or_zeros(const float* from, int count, float* to) {
  for (int i = 0; i < BLOCK; i++) to[i] = from && i < count ? from[i] : 0;
}

// fp32: bias [BLOCK], then [k, BLOCK].
namespace f32 {

size_t bytes(int inputs) { return sizeof(float) * BLOCK * (1 + static_cast<size_t>(inputs)); }

void pack(const Stored& from, uint8_t* tile) {
  float* to = reinterpret_cast<float*>(tile);
  const float* weights = static_cast<const float*>(from.codes);
  copy_or_zeros(from.bias, from.count, to);
  for (int n = 0; n < BLOCK; n++)
    for (int k = 0; k < from.inputs; k++)
      to[static_cast<size_t>(1 + k) * BLOCK + n] = n < from.count ? weights[static_cast<size_t>(n) * from.inputs + k] : 0;
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  for (int k = 0; k < inputs; k++) out[k] = reinterpret_cast<const float*>(tile)[static_cast<size_t>(1 + k) * BLOCK + n];
}

void multiply(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  const float* bias = reinterpret_cast<const float*>(tile);
  for (int m = 0; m < rows; m++, out += BLOCK) {
    float sums[BLOCK] = {};
    const float *weights = bias + BLOCK, *x = in.x + m * in.stride;
    for (int k = 0; k < inputs; k++, weights += BLOCK)
      for (int n = 0; n < BLOCK; n++) sums[n] += x[k] * weights[n];
    for (int n = 0; n < BLOCK; n++) out[n] = sums[n] + bias[n];
  }
}

}  // namespace f32

// int8 with a scale an output: scales, bias, then codes + 128 [BLOCK, filled k].
namespace int8 {

constexpr size_t HEAD = 2 * BLOCK * sizeof(float);

size_t bytes(int inputs) { return HEAD + static_cast<size_t>(BLOCK) * filled(inputs); }

// Codes + 128 [BLOCK, filled k]; 128 stands for missing ones.
void pack_codes(const Stored& from, uint8_t* to) {
  const int8_t* codes = static_cast<const int8_t*>(from.codes);
  std::memset(to, 128, static_cast<size_t>(BLOCK) * filled(from.inputs));
  for (int n = 0; n < from.count; n++)
    for (int k = 0; k < from.inputs; k++)
      to[static_cast<size_t>(n) * filled(from.inputs) + k] = static_cast<uint8_t>(codes[static_cast<size_t>(n) * from.inputs + k] + 128);
}

void pack(const Stored& from, uint8_t* tile) {
  copy_or_zeros(from.scales, from.count, reinterpret_cast<float*>(tile));
  copy_or_zeros(from.bias, from.count, reinterpret_cast<float*>(tile) + BLOCK);
  pack_codes(from, tile + HEAD);
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const float scale = reinterpret_cast<const float*>(tile)[n];
  const uint8_t* codes = tile + HEAD + static_cast<size_t>(n) * filled(inputs);
  for (int k = 0; k < inputs; k++) out[k] = (codes[k] - 128) * scale;
}

void multiply(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  const float *scales = reinterpret_cast<const float*>(tile), *bias = scales + BLOCK;
  for (int m = 0; m < rows; m++) {
    const Rounded row = in.rounded.row(m);
    const uint8_t* weights = tile + HEAD;
    for (int n = 0; n < BLOCK; n++, weights += row.inputs) {
      float total = 0;
      for (int b = 0; b < row.inputs / BLOCK; b++) {
        int32_t sum = row.offsets[2 * b] + row.offsets[2 * b + 1];
        for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) sum += weights[i] * row.codes[i];
        total = std::fma(static_cast<float>(sum), row.scales[b], total);
      }
      out[m * BLOCK + n] = std::fma(total, scales[n], bias[n]);
    }
  }
}

}  // namespace int8

// The formats of groups: bias, scales as halves [BLOCK, groups], least values likewise (if any), then codes.
namespace groups {

int count(int inputs) { return filled(inputs) / GROUP; }

size_t half_bytes(int inputs) { return sizeof(uint16_t) * BLOCK * count(inputs); }

// [outputs, inputs / GROUP], rounded up, to halves [BLOCK, groups].
void pack_halves(const float* from, const Stored& stored, uint16_t* to) {
  const int all = count(stored.inputs), there = (stored.inputs + GROUP - 1) / GROUP;
  for (int n = 0; n < BLOCK; n++)
    for (int g = 0; g < all; g++) to[n * all + g] = n < stored.count && g < there ? to_half(from[n * there + g]) : 0;
}

// Shared by the formats: `LEAST` says whether there are least values.
template <bool LEAST>
struct Parts {
  const float* bias;
  const uint16_t *scales, *least;
  const uint8_t* codes;

  Parts(const uint8_t* tile, int inputs)
      : bias(reinterpret_cast<const float*>(tile)),
        scales(reinterpret_cast<const uint16_t*>(bias + BLOCK)),
        least(scales + BLOCK * count(inputs)),
        codes(reinterpret_cast<const uint8_t*>(LEAST ? least + BLOCK * count(inputs) : least)) {}

  // Calls code(n, k) for the codes.
  template <class Code>
  void multiply(const Operand& in, int rows, float* out, Code&& code) const {
    for (int m = 0; m < rows; m++) {
      const Rounded row = in.rounded.row(m);
      for (int n = 0; n < BLOCK; n++) {
        float total = 0;
        for (int g = 0; g < count(row.inputs); g++) {
          const float scale = row.scales[g / 2];
          int32_t sum = LEAST ? 0 : row.offsets[g];
          for (int i = g * GROUP; i < (g + 1) * GROUP; i++) sum += code(n, i) * row.codes[i];
          total = std::fma(static_cast<float>(sum) * scale, from_half(scales[n * count(row.inputs) + g]), total);
          if (LEAST) {
            const float codes_sum = static_cast<float>(row.offsets[g]) * scale * (-1 / 128.f);
            total = std::fma(codes_sum, from_half(least[n * count(row.inputs) + g]), total);
          }
        }
        out[m * BLOCK + n] = total + bias[n];
      }
    }
  }
};

}  // namespace groups

namespace int8_block {

size_t bytes(int inputs) {
  return BLOCK * sizeof(float) + groups::half_bytes(inputs) + static_cast<size_t>(BLOCK) * filled(inputs);
}

using Parts = groups::Parts<false>;

void pack(const Stored& from, uint8_t* tile) {
  const Parts parts(tile, from.inputs);
  copy_or_zeros(from.bias, from.count, const_cast<float*>(parts.bias));
  groups::pack_halves(from.scales, from, const_cast<uint16_t*>(parts.scales));
  int8::pack_codes(from, const_cast<uint8_t*>(parts.codes));
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const Parts parts(tile, inputs);
  for (int k = 0; k < inputs; k++)
    out[k] = (parts.codes[static_cast<size_t>(n) * filled(inputs) + k] - 128) *
             from_half(parts.scales[n * groups::count(inputs) + k / GROUP]);
}

void multiply(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  const Parts parts(tile, inputs);
  parts.multiply(in, rows, out, [&](int n, int k) { return parts.codes[static_cast<size_t>(n) * filled(inputs) + k]; });
}

}  // namespace int8_block

namespace int4_min {

size_t bytes(int inputs) {
  return BLOCK * sizeof(float) + 2 * groups::half_bytes(inputs) + static_cast<size_t>(BLOCK) * filled(inputs) / 2;
}

using Parts = groups::Parts<true>;

int code(const Parts& parts, int inputs, int n, int k) {
  return parts.codes[(static_cast<size_t>(n) * filled(inputs) + k) / 2] >> k % 2 * 4 & 15;
}

void pack(const Stored& from, uint8_t* tile) {
  const Parts parts(tile, from.inputs);
  copy_or_zeros(from.bias, from.count, const_cast<float*>(parts.bias));
  groups::pack_halves(from.scales, from, const_cast<uint16_t*>(parts.scales));
  groups::pack_halves(from.least, from, const_cast<uint16_t*>(parts.least));
  const size_t row = filled(from.inputs) / 2, stored = (from.inputs + 1) / 2;
  uint8_t* to = const_cast<uint8_t*>(parts.codes);
  std::memset(to, 0, BLOCK * row);
  for (int n = 0; n < from.count; n++) std::memcpy(to + n * row, static_cast<const uint8_t*>(from.codes) + n * stored, stored);
}

void unpack(const uint8_t* tile, int inputs, int n, float* out) {
  const Parts parts(tile, inputs);
  for (int k = 0; k < inputs; k++) {
    const int at = n * groups::count(inputs) + k / GROUP;
    out[k] = std::fma(static_cast<float>(code(parts, inputs, n, k)), from_half(parts.scales[at]), from_half(parts.least[at]));
  }
}

void multiply(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
  const Parts parts(tile, inputs);
  parts.multiply(in, rows, out, [&](int n, int k) { return code(parts, inputs, n, k); });
}

}  // namespace int4_min

// The formats that files alone have: scales as floats [BLOCK, k / DEPTH], least values likewise (if any), bias, then the
// numbers of codes [BLOCK, filled k].
template <bool LEAST, int DEPTH>
struct Wide {
  float *scales, *least, *bias;
  int8_t* numbers;

  static int count(int inputs) { return filled(inputs) / DEPTH; }

  Wide(uint8_t* tile, int inputs)
      : scales(reinterpret_cast<float*>(tile)),
        least(scales + BLOCK * count(inputs)),
        bias(LEAST ? least + BLOCK * count(inputs) : least),
        numbers(reinterpret_cast<int8_t*>(bias + BLOCK)) {}
  Wide(const uint8_t* tile, int inputs) : Wide(const_cast<uint8_t*>(tile), inputs) {}

  static size_t bytes(int inputs) {
    return sizeof(float) * BLOCK * ((LEAST ? 2 : 1) * count(inputs) + 1) + static_cast<size_t>(BLOCK) * filled(inputs);
  }

  static void pack(const Stored& from, uint8_t* tile) {
    const Wide to(tile, from.inputs);
    const int k = filled(from.inputs), there = from.inputs / DEPTH;
    std::memset(tile, 0, bytes(from.inputs));
    copy_or_zeros(from.bias, from.count, to.bias);
    for (int n = 0; n < from.count; n++) {
      const int8_t* codes = static_cast<const int8_t*>(from.codes) + static_cast<size_t>(n) * from.inputs;
      for (int i = 0; i < from.inputs; i++) to.numbers[static_cast<size_t>(n) * k + i] = from.table ? from.table[codes[i]] : codes[i];
      for (int g = 0; g < there; g++) {
        const int at = n * there + g, block = n * (from.inputs / LARGE) + g * DEPTH / LARGE;
        const auto as_half = [](float x) { return from_half(to_half(x)); };
        float& scale = to.scales[n * count(k) + g];
        const auto large = [&] { return from.table ? from.large_scales[block] : as_half(from.large_scales[block]); };
        scale = from.large_scales ? from.scales[at] * large() : as_half(from.scales[at]);
        if (!LEAST) continue;
        const float zero_point = static_cast<float>(-static_cast<int>(from.least[at]));  // 0 has no sign
        to.least[n * count(k) + g] = from.large_scales ? from.least[at] * as_half(from.large_least[block]) : zero_point * scale;
      }
    }
  }

  static void unpack(const uint8_t* tile, int inputs, int n, float* out) {
    const Wide from(tile, inputs);
    for (int i = 0; i < inputs; i++) {
      const int g = n * count(inputs) + i / DEPTH;
      const float number = from.numbers[static_cast<size_t>(n) * filled(inputs) + i];
      out[i] = LEAST ? std::fma(number, from.scales[g], from.least[g]) : number * from.scales[g];
    }
  }

  static void multiply(const uint8_t* tile, const Operand& in, int inputs, int rows, float* out) {
    const Wide from(tile, inputs);
    for (int m = 0; m < rows; m++) {
      const Rounded row = in.rounded.row(m);
      for (int n = 0; n < BLOCK; n++) {
        const int8_t* numbers = from.numbers + static_cast<size_t>(n) * row.inputs;
        float total = 0;
        for (int g = 0; g < count(row.inputs); g++) {
          const float scale = row.scales[g * DEPTH / BLOCK];
          int32_t sum = 0, codes = 0;
          for (int i = g * DEPTH; i < (g + 1) * DEPTH; i++) {
            sum += numbers[i] * row.codes[i];
            codes += row.codes[i];
          }
          const int at = n * count(row.inputs) + g;
          total = std::fma(static_cast<float>(sum) * scale, from.scales[at], total);
          if (LEAST) total = std::fma(static_cast<float>(codes) * scale, from.least[at], total);
        }
        out[m * BLOCK + n] = total + from.bias[n];
      }
    }
  }

  static constexpr Tiles tiles() { return {bytes, pack, unpack, multiply}; }
};

}  // namespace

const Gemm plain_gemm = {
    round,
    finish,
    {
        {f32::bytes, f32::pack, f32::unpack, f32::multiply},
        {int8::bytes, int8::pack, int8::unpack, int8::multiply},
        {int8_block::bytes, int8_block::pack, int8_block::unpack, int8_block::multiply},
        {int4_min::bytes, int4_min::pack, int4_min::unpack, int4_min::multiply},
        Wide<false, GROUP>::tiles(),
        Wide<true, GROUP>::tiles(),
        Wide<false, FINE>::tiles(),
        Wide<true, FINE>::tiles(),
        Wide<false, GROUP>::tiles(),
        Wide<false, FINE>::tiles(),
        Wide<true, GROUP>::tiles(),
        Wide<false, FINE>::tiles(),
        Wide<true, GROUP>::tiles(),
    },
};

}  // namespace kvcast
