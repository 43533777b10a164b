#include "threads.hpp"

#if defined(_WIN32)
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcast {
namespace {

constexpr int SPINS = 4000;  // some 40 to 100 microseconds
constexpr int BITS = 20;
constexpr uint64_t MASK = (1u << BITS) - 1;

uint64_t claimed(uint64_t state) { return state & MASK; }
uint64_t tiles(uint64_t state) { return state >> BITS & MASK; }

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Condition&& met) {
  for (int i = 0; i < SPINS; i++) {
    if (met()) return true;
    pause();
  }
  return met();
}

}  // namespace

Threads::Threads(int count) : process_(getpid()) {
  for (int i = 1; i < count; i++) threads_.emplace_back([this] { serve(); });
}

Threads::~Threads() {
  if (getpid() != process_) {
    // They are not there to be joined, and a std::thread that nobody joined ends the process.
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  work_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool Threads::has_work(uint64_t state) const { return claimed(state) < tiles(state); }

// Claims a tile and does it; false if there is none.
bool Threads::work_on_one() {
  uint64_t state = state_.load();
  do {
    if (!has_work(state)) return false;
  } while (!state_.compare_exchange_weak(state, state + 1));
  const uint64_t last = tiles(state);
  (*work_)(static_cast<int>(claimed(state)));  // the call cannot end before this tile does
  if (static_cast<uint64_t>(done_.fetch_add(1)) + 1 == last && caller_sleeps_.load()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    all_done_.notify_one();
  }
  return true;
}

void Threads::serve() {
  const auto wanted = [this] { return stopping_.load() || has_work(state_.load()); };
  for (;;) {
    while (work_on_one()) {
    }
    if (!spin_until(wanted)) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleeping_++;
      work_came_.wait(lock, wanted);
      sleeping_--;
    }
    if (stopping_) return;
  }
}

void Threads::run(int count, const std::function<void(int)>& work) {
  if (threads_.empty() || count == 1 || getpid() != process_) {
    for (int i = 0; i < count; i++) work(i);
    return;
  }
  work_ = &work;
  done_ = 0;
  const uint64_t call = (state_.load() >> 2 * BITS) + 1;
  state_ = call << 2 * BITS | static_cast<uint64_t>(count) << BITS;
  if (sleeping_.load() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_came_.notify_all();
  }
  while (work_on_one()) {
  }
  const auto finished = [this, count] { return done_.load() == count; };
  if (spin_until(finished)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  caller_sleeps_ = true;
  all_done_.wait(lock, finished);
  caller_sleeps_ = false;
}

}  // namespace kvcast
