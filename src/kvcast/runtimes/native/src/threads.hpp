// Threads that stay, and share work tile by tile.
#pragma once
#include <functional>

namespace kvcast {

// Threads that a caller lends for a call: on_each calls work(context) on all `count` of them, or on
// fewer, and returns when they are done.
struct Lent {
  int count;
  void (*on_each)(void (*work)(void*), void* context);
};

// Who claims which of a call's tiles. NEIGHBOURS: each thread begins with its own range, so that it reads memory in its
// order; for tiles that take about as long as each other. IN_ORDER: whoever is free claims the first of all.
enum class Sharing { NEIGHBOURS, IN_ORDER };

// Threads claim tiles one at a time, the caller too, and a thread whose range is done steals from others, so a thread
// that the system takes away delays its own tile and no other. Threads without work spin for some microseconds, as the
// next call mostly comes soon, and then sleep. Where other processes keep taking a core away, a thread fewer takes part
// for a while.
//
// One call at a time. A forked process has none of its parent's threads; its first call starts its own.
class Threads {
 public:
  // Throws std::system_error where the system has no threads left.
  explicit Threads(int count);
  explicit Threads(const Lent&);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  // Calls work(i) for each i below count, in any order, and returns when all are done.
  // If any of them throw, it throws one of their exceptions. `work` itself calls no `run`.
  void run(int count, const std::function<void(int)>& work, Sharing = Sharing::NEIGHBOURS);

  int count() const { return count_; }

 private:
  struct Pool;
  int count_;
  Pool* pool_;  // null: the caller alone, or lent threads
  Lent lent_{1, nullptr};
};

}  // namespace kvcast
