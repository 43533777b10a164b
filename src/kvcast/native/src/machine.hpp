// What a call runs with: the instructions, the threads, and space to work in.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "kernels.hpp"
#include "threads.hpp"

namespace kvcast {

// Memory that is kept from call to call, aligned for the widest loads; it grows to what was asked for last.
class Space {
 public:
  Space() = default;
  ~Space() { std::free(data_); }
  Space(const Space&) = delete;
  Space& operator=(const Space&) = delete;

  // What was there before is lost.
  uint8_t* of(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = (bytes + 4095) / 4096 * 4096;
      data_ = static_cast<uint8_t*>(std::aligned_alloc(4096, size_));
      if (data_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return data_;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

struct Machine {
  const Instructions& with;
  Threads threads;
  Space space;
};

inline int parts(int whole, int size) { return (whole + size - 1) / size; }

}  // namespace kvcast
