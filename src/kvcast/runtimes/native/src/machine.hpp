// The means of a call: instructions, threads, and working space.
#pragma once
#include <cstddef>
#include <cstdint>
#include <new>

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

struct Machine {
  const Instructions& with;
  Threads threads;
  Space space;
};

inline int parts(int whole, int size) { return (whole + size - 1) / size; }

}  // namespace kvcast
