#include "packing.hpp"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "gemm.hpp"

namespace kvcast {

const int8_t* table_of(Encoding encoding) {
  static constexpr int8_t EVEN[TABLE] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  static constexpr int8_t NONLINEAR[TABLE] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static constexpr int8_t SMALL_FLOATS[TABLE] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};  // doubled, of e2m1
  // 127 times bitsandbytes' create_normal_map, rounded.
  static constexpr int8_t NORMAL[TABLE] = {-127, -88, -67, -50, -36, -23, -12, 0, 10, 20, 31, 43, 56, 71, 92, 127};
  static constexpr int8_t TERNARY[TABLE] = {-1, 0, 1, 2};
  // A sign's bit is 8. The numbers of IQ1 are eighths: -1, 0 or 1, and one more or, with the bit, less.
  static constexpr int8_t ONE_BIT[TABLE] = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7};
  static constexpr int8_t TWO_BITS[TABLE] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43};
  static constexpr int8_t ODD[TABLE] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
  static constexpr int8_t THREE_BITS[TABLE] = {4,  12,  20,  28,  36,  44,  52,  62,
                                               -4, -12, -20, -28, -36, -44, -52, -62};
  switch (encoding) {
    case Encoding::Q4_0: return EVEN;
    case Encoding::IQ4_NL:
    case Encoding::IQ4_XS: return NONLINEAR;
    case Encoding::MXFP4:
    case Encoding::NVFP4: return SMALL_FLOATS;
    case Encoding::TQ1_0:
    case Encoding::TQ2_0: return TERNARY;
    case Encoding::IQ1_S:
    case Encoding::IQ1_M: return ONE_BIT;
    case Encoding::IQ2_XXS:
    case Encoding::IQ2_XS:
    case Encoding::IQ2_S: return TWO_BITS;
    case Encoding::IQ3_XXS: return THREE_BITS;
    case Encoding::IQ3_S: return ODD;
    case Encoding::NF4: return NORMAL;
    default: return nullptr;
  }
}

namespace {

const uint8_t* grids[ENCODINGS];

}  // namespace

void set_grid(Encoding encoding, const uint8_t* points) { grids[static_cast<int>(encoding)] = points; }

const uint8_t* grid_of(Encoding encoding) { return grids[static_cast<int>(encoding)]; }

namespace {

// Some rows of a matrix in its format, and room for one row's values.
class CodedRows {
 public:
  void resize(Format format, size_t inputs) {
    format_ = format;
    inputs_ = inputs;
    groups_ = format == Format::INT8 ? 1 : inputs / depth_of(format);
    bytes_ = format == Format::F32 ? 0 : has_pairs() ? inputs / 2 : inputs;
    numbers_.resize(format == Format::F32 ? BLOCK * inputs : inputs);
    codes_.resize(BLOCK * bytes_);
    scales_.resize(BLOCK * groups_);
    least_.resize(has_least() ? BLOCK * groups_ : 0);
    large_scales_.resize(is_large(format) ? BLOCK * (inputs / LARGE) : 0);
    large_least_.resize(is_large(format) && has_least() ? BLOCK * (inputs / LARGE) : 0);
  }

  // Row n of the rows being packed.
  void read(int n, Encoding encoding, const uint8_t* row, float factor, bool own, const Reading& reading) {
    const int inputs = static_cast<int>(inputs_);
    const auto read_numbers = [&](float* numbers) {
      reading.numbers(encoding, row, inputs, numbers);
      multiply(numbers, inputs_, factor);
    };
    if (format_ == Format::F32) return read_numbers(at(numbers_, n, inputs_));
    const OwnCodes to = {reinterpret_cast<int8_t*>(at(codes_, n, bytes_)), at(scales_, n, groups_), at(least_, n, groups_),
                         at(large_scales_, n, inputs_ / LARGE), at(large_least_, n, inputs_ / LARGE)};
    uint8_t* codes = at(codes_, n, bytes_);
    if ((has_pairs() && reading.codes(encoding, row, inputs, codes, to.scales, to.least)) ||
        ((own || encoding == Encoding::Q8_0) && reading.own(format_, encoding, row, inputs, to))) {
      const size_t factors = is_large(format_) ? inputs_ / LARGE : groups_;
      multiply(is_large(format_) ? to.large_scales : to.scales, factors, factor);
      if (has_least() && format_ != Format::INT4_ZERO_POINT) multiply(is_large(format_) ? to.large_least : to.least, factors, factor);
      return;
    }
    if (static_cast<int>(format_) >= BUNDLE_FORMATS) throw std::invalid_argument("rows without the format's codes");
    float* numbers = numbers_.data();
    read_numbers(numbers);
    if (has_pairs())
      reading.search(numbers, inputs, codes, to.scales, to.least);
    else if (format_ == Format::INT8)
      reading.round_row(numbers, inputs, to.codes, to.scales);
    else
      reading.round_groups(numbers, inputs, to.codes, to.scales);
  }

  Stored stored(int count, const float* bias, Encoding encoding) const {
    const void* codes = codes_.data();
    if (format_ == Format::F32) codes = numbers_.data();
    return {codes, scales_.data(), least_.data(), bias, count, static_cast<int>(inputs_),
            large_scales_.empty() ? nullptr : large_scales_.data(), large_least_.data(),
            has_table(format_) ? table_of(encoding) : nullptr};
  }

 private:
  static void multiply(float* x, size_t count, float factor) {
    for (size_t i = 0; factor != 1 && i < count; i++) x[i] *= factor;
  }

  bool has_pairs() const { return format_ == Format::INT4_MIN; }
  bool has_least() const {
    return has_pairs() || format_ == Format::INT4_LARGE || format_ == Format::INT8_LARGE_MIN ||
           format_ == Format::INT6_LARGE_MIN || format_ == Format::INT4_ZERO_POINT;
  }

  template <class Number>
  static Number* at(std::vector<Number>& all, size_t n, size_t each) {
    return all.empty() ? nullptr : all.data() + n * each;
  }

  Format format_{};
  size_t inputs_ = 0, groups_ = 0, bytes_ = 0;
  std::vector<float> numbers_, scales_, least_, large_scales_, large_least_;
  std::vector<uint8_t> codes_;
};

}  // namespace

void pack_rows(Machine& machine, Format format, bool own, int outputs, int inputs, const FileRows& from, const float* bias,
               uint8_t* tiles) {
  if (is_large(format) && inputs % LARGE) throw std::invalid_argument("rows without whole blocks");
  const Tiles& of = machine.with.gemm.of(format);
  const size_t bytes = of.bytes(inputs);
  machine.threads.run(parts(outputs, BLOCK), [&](int tile) {
    thread_local CodedRows coded;  // its pages are touched once
    coded.resize(format, inputs);
    const int first = tile * BLOCK, count = std::min(BLOCK, outputs - first);
    for (int n = 0; n < count; n++) {
      const int row = first + n;
      coded.read(n, from.encodings[row], from.rows[row], from.factors ? from.factors[row] : 1, own, machine.with.reading);
    }
    of.pack(coded.stored(count, bias ? bias + first : nullptr, from.encodings[first]), tiles + tile * bytes);
  });
}

}  // namespace kvcast
