// Memory that ends where the next page cannot be touched, for the programs that hold instruction sets against plain.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>

#include <sys/mman.h>
#include <unistd.h>

#include "checks.hpp"

const inline float NOT = std::numeric_limits<float>::quiet_NaN();

// Numbers that end at a page which nobody may touch. They begin as NaN or, of integers, as -1.
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) : count_(count) {
    const size_t page = sysconf(_SC_PAGESIZE), bytes = (count * sizeof(T) + page - 1) / page * page;
    size_ = bytes + page;
    all_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(all_ != MAP_FAILED && mprotect(static_cast<uint8_t*>(all_) + bytes, page, PROT_NONE) == 0);
    std::memset(all_, 0xff, bytes);
    data_ = reinterpret_cast<T*>(static_cast<uint8_t*>(all_) + bytes - count * sizeof(T));
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(all_, size_); }

  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  size_t size() const { return count_; }

 private:
  size_t count_, size_;
  void* all_;
  T* data_;
};

using Floats = Guarded<float>;

inline void fill(Random& random, Floats& to, float scale = 1) {
  for (size_t i = 0; i < to.size(); i++) to[i] = number(random) * scale;
}

inline bool same_bits(const void* a, const void* b, size_t bytes) { return std::memcmp(a, b, bytes) == 0; }

// NaN equals NaN here: its bits say where it came from.
inline bool same(float a, float b) { return same_bits(&a, &b, sizeof a) || (std::isnan(a) && std::isnan(b)); }

inline bool near(float a, float b, float margin) { return same(a, b) || std::fabs(a - b) <= margin; }

// Rounded rows.
struct Codes {
  Guarded<int8_t> codes;
  Floats scales;
  Guarded<int32_t> offsets, fine;
  kvcast::Rounded rounded;

  Codes(int rows, int inputs)
      : codes(static_cast<size_t>(rows) * kvcast::filled(inputs)),
        scales(codes.size() / kvcast::BLOCK),
        offsets(codes.size() / kvcast::GROUP),
        fine(codes.size() / kvcast::FINE),
        rounded{codes.data(), scales.data(), offsets.data(), fine.data(), kvcast::filled(inputs)} {}

  void check(Codes& other) {
    CHECK(same_bits(codes.data(), other.codes.data(), codes.size()));
    CHECK(same_bits(offsets.data(), other.offsets.data(), offsets.size() * sizeof(int32_t)));
    CHECK(same_bits(fine.data(), other.fine.data(), fine.size() * sizeof(int32_t)));
    for (size_t i = 0; i < scales.size(); i++) CHECK(same(scales[i], other.scales[i]));
  }
};
