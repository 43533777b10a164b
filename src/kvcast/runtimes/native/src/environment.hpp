// How floating-point numbers are rounded while a call runs.
#pragma once
#include <cfenv>
#include <cstdint>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace kvcast {

// Numbers are rounded to the nearest, and subnormal ones count as zero, whatever the thread has set; that is kept.
// Tails of softmaxes and of GELU are subnormal, and there Intel's processors take 150 cycles for a multiplication.
class Environment {
 public:
  Environment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
    flush_subnormals();
  }
  ~Environment() { std::fesetenv(&before_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::fenv_t before_;

  static void flush_subnormals() {
#if defined(__x86_64__)
    constexpr unsigned RESULTS = 1u << 15, OPERANDS = 1u << 6;
    _mm_setcsr(_mm_getcsr() | RESULTS | OPERANDS);
#elif defined(__aarch64__)
    constexpr uint64_t BOTH = 1u << 24;
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" ::"r"(control | BOTH));
#endif
  }
};

}  // namespace kvcast
