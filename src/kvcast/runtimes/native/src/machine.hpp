// The resources of a call: kernels, threads, scratch memory, and the floating-point rounding mode.
#pragma once
#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <new>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "kernels.hpp"
#include "threads.hpp"

namespace kvcast {

// Memory that is kept from call to call, aligned for the widest loads; it grows to the largest request.
class Space {
 public:
  Space() = default;
  ~Space() { release(); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // Loses its contents.
  uint8_t* of(size_t bytes) {
    if (bytes > size_) {
      release();
      const size_t size = (bytes + PAGE - 1) / PAGE * PAGE;
      data_ = static_cast<uint8_t*>(::operator new(size, std::align_val_t(PAGE)));
      size_ = size;
    }
    return data_;
  }

 private:
  static constexpr size_t PAGE = 4096;

  void release() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t(PAGE));
    data_ = nullptr;
    size_ = 0;
  }

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// Sets round-to-nearest and flush-to-zero for a call; restores the thread's own mode afterwards. Tails of softmaxes and
// of GELU are subnormal, and there Intel's processors take 150 cycles for a multiplication.
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

struct Machine {
  const Instructions& with;
  Threads threads;
  Space space;
};

inline int parts(int whole, int size) { return (whole + size - 1) / size; }

}  // namespace kvcast
