// Threads that stay, and share work tile by tile.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvcast {

// Tiles are claimed one at a time by whoever is there, the caller among them, so a thread that the
// system takes away delays its own tile and nobody else's. Threads without work spin for some
// microseconds, as the next call mostly comes soon, and then sleep.
//
// One call at a time. In a process that was forked later the threads are gone, and the caller does
// all of it.
class Threads {
 public:
  explicit Threads(int count);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Calls work(i) for each i below count, a million at most, in any order, and returns when all are done.
  void run(int count, const std::function<void(int)>& work);

  int count() const { return static_cast<int>(threads_.size()) + 1; }

 private:
  void serve();
  bool work_on_one();
  bool has_work(uint64_t state) const;

  // Which call it is (24 bits), how many tiles it has and how many were claimed (20 bits each). All in
  // one, so that a thread that comes late cannot take another call's tile for its own.
  std::atomic<uint64_t> state_{0};
  std::atomic<int> done_{0};
  const std::function<void(int)>* work_ = nullptr;

  std::atomic<bool> stopping_{false};
  std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::mutex mutex_;
  std::condition_variable work_came_, all_done_;
  std::vector<std::thread> threads_;
  int process_;
};

}  // namespace kvcast
