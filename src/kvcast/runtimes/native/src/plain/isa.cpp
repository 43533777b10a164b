// The instruction set that runs everywhere.
#include "plain/plain.hpp"

namespace kvcast {
namespace {

constexpr int SUMS = 32;

// As fast as the compiler makes it; integers are no faster.
double multiply(int64_t turns) {
  static volatile float given = 1, taken;
  const float x = given, y = given;
  float sums[SUMS] = {};
  for (int64_t turn = 0; turn < turns; turn++)
    for (float& sum : sums) sum = sum * x + y;
  for (float sum : sums) taken = sum;
  return 2. * SUMS * turns;
}

}  // namespace

const Peaks plain_peaks = {multiply, multiply};

const Instructions plain = {"plain", "all in C++ without vectors", [] { return true; }, plain_peaks, plain_gemm, plain_rows, plain_attention, plain_encoder_attention, plain_scores, plain_reading};

}  // namespace kvcast
