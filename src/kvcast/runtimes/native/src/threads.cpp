#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "machine.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvcast {
namespace {

using Clock = std::chrono::steady_clock;

// The caller gives up first: a thread that holds the last tile and has lost its core takes the caller's.
constexpr Clock::duration SPIN = std::chrono::microseconds(50), CALLER_SPIN = std::chrono::microseconds(15);
constexpr Clock::duration STALL = std::chrono::microseconds(500);
constexpr Clock::duration LEAST_LEAVE = std::chrono::milliseconds(5), MOST_LEAVE = std::chrono::milliseconds(80);
constexpr int SPINS_PER_LOOK = 64;  // at the clock
constexpr int BITS = 20;
constexpr uint64_t MASK = (1u << BITS) - 1;

// How often this process is a fork of a fork. A counter, since getpid() costs as much as a short call.
std::atomic<int> forks{0};
#if !defined(_WIN32)
[[maybe_unused]] const int counted = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
#endif

// Tiles of a call, of which a thread claims the first and others the last. All in one number with the call's (24 bits),
// so that a thread that comes late cannot take another call's tile for its own.
class Range {
 public:
  void reset(uint64_t call, int first, int last) {
    state_ = call << 2 * BITS | static_cast<uint64_t>(last) << BITS | static_cast<uint64_t>(first);
  }

  // A tile; negative if there is none. Whoever claims one keeps the call from ending until it is done.
  int claim_first() {
    uint64_t now = state_.load();
    do {
      if (first(now) == last(now)) return -1;
    } while (!state_.compare_exchange_weak(now, now + 1));
    return first(now);
  }

  int claim_last() {
    uint64_t now = state_.load();
    do {
      if (first(now) == last(now)) return -1;
    } while (!state_.compare_exchange_weak(now, now - (uint64_t{1} << BITS)));
    return last(now) - 1;
  }

 private:
  static int first(uint64_t state) { return static_cast<int>(state & MASK); }
  static int last(uint64_t state) { return static_cast<int>(state >> BITS & MASK); }

  alignas(64) std::atomic<uint64_t> state_{0};
};

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(Clock::duration most, Condition&& met) {
  const auto spin = [&met] {
    for (int i = 0; i < SPINS_PER_LOOK; i++) {
      if (met()) return true;
      pause();
    }
    return false;
  };
  if (spin()) return true;
  const auto end = Clock::now() + most;
  while (Clock::now() < end)
    if (spin()) return true;
  return met();
}

}  // namespace

// How many of a pool's threads take part. When another process wants a core, the system takes it away from
// one of them in the midst of a tile, for milliseconds, again and again, and all wait. It is faster to leave
// that core alone for a while: then a thread fewer takes part, and is tried again later. Only the caller
// uses it.
class Leave {
 public:
  bool anybody() const { return away_ > 0; }

  // Returns how many are away from now on.
  int look() {
    if (away_ > 0 && Clock::now() > until_) {
      returned_ = until_;
      until_ += length_;
      away_--;
    }
    return away_;
  }

  // Records a call in which the caller worked and then waited.
  int after(Clock::duration worked, Clock::duration waited, int threads) {
    if (waited < 2 * worked + STALL || away_ == threads) return away_;  // a tile takes as long as another
    const auto now = Clock::now();
    length_ = now - returned_ > 4 * length_ ? LEAST_LEAVE : std::min(2 * length_, MOST_LEAVE);
    until_ = now + length_;
    return ++away_;
  }

 private:
  int away_ = 0;
  Clock::time_point until_, returned_;
  Clock::duration length_ = LEAST_LEAVE;
};

struct Threads::Pool {
  const int forked = forks.load();

  // The call's number; threads look for work when it changes.
  alignas(64) std::atomic<uint64_t> call{0};
  const std::function<void(int)>* work = nullptr;
  int count = 0;
  std::atomic<bool> in_order{false};
  std::vector<Range> ranges;  // of the threads; the caller's is the last
  alignas(64) std::atomic<int> done{0};

  // A thread that is about to sleep announces it before looking for work a last time, and a caller with work looks for
  // sleepers after telling of it: one of the two sees the other. Both need the order of all atomic
  // operations that is the default.
  alignas(64) std::atomic<int> sleeping{0};  // of the threads that are not on leave
  std::atomic<int> away{0};  // so many of the threads, the last ones, leave the work to the others
  std::atomic<bool> caller_sleeps{false}, stopping{false};
  std::mutex mutex;
  std::condition_variable work_came, leave_ended, all_done;
  std::exception_ptr error;  // written under the mutex
  Leave leave;
  const int size;
  std::vector<std::thread> threads;

  explicit Pool(int others) : ranges(others + 1), size(others) {
    try {
      for (int i = 0; i < others; i++) threads.emplace_back([this, i] { serve(i); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  void stop() {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      stopping = true;
    }
    work_came.notify_all();
    leave_ended.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // Claims tiles of a range and does them; returns how many.
  template <class Claim>
  int work_on(Claim&& claim) {
    int tiles = 0;
    for (int tile; (tile = claim()) >= 0; tiles++) {
      try {
        (*work)(tile);
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
      }
    }
    if (tiles == 0) return 0;
    const int all = count;  // the call may end with the tiles that are recorded now
    if (done.fetch_add(tiles) + tiles == all && caller_sleeps.load()) {
      const std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_one();
    }
    return tiles;
  }

  // The thread's own range, then the remaining tiles of others.
  int work_from(int me) {
    int tiles = work_on([&] { return ranges[me].claim_first(); });
    for (int i = 1; i <= size; i++) {
      Range& range = ranges[(me + i) % (size + 1)];
      tiles += work_on([&] { return in_order.load() ? range.claim_first() : range.claim_last(); });
    }
    return tiles;
  }

  void serve(int me) {
    const Environment environment;  // the caller's, not the environment of this thread's creator
    uint64_t seen = 0;
    const auto present = [this, me] { return me < size - away.load(); };
    const auto back = [&] { return stopping.load() || present(); };
    const auto wanted = [&] { return stopping.load() || !present() || call.load() != seen; };
    for (;;) {
      if (!spin_until(SPIN, wanted)) {
        std::unique_lock<std::mutex> lock(mutex);
        sleeping++;
        work_came.wait(lock, wanted);
        sleeping--;
      }
      if (!back()) {
        std::unique_lock<std::mutex> lock(mutex);
        leave_ended.wait(lock, back);
      }
      if (stopping) return;
      seen = call.load();
      work_from(me);
    }
  }

  // Ranges of neighbouring tiles for all that are present; or all for the caller's, of which others claim the first.
  void share(int tiles) {
    const uint64_t next = call.load() + 1;
    const int present = in_order.load() ? 0 : size - away.load(), sharing = present + 1;
    const auto begin = [&](int i) { return static_cast<int>(static_cast<int64_t>(tiles) * i / sharing); };
    for (int i = 0; i < present; i++)
      ranges[i].reset(next, begin(i), begin(i + 1));
    ranges[size].reset(next, begin(present), tiles);
    call = next;
  }

  void run(int tiles, const std::function<void(int)>& tile, Sharing sharing) {
    if (leave.anybody()) {
      const int still = leave.look();
      if (still < away.load()) {
        away = still;
        const std::lock_guard<std::mutex> lock(mutex);
        leave_ended.notify_all();
      }
      if (still == size) {
        for (int i = 0; i < tiles; i++) tile(i);
        return;
      }
    }
    work = &tile;
    count = tiles;
    in_order = sharing == Sharing::IN_ORDER;
    done = 0;
    share(tiles);
    if (sleeping.load() > 0) {
      const std::lock_guard<std::mutex> lock(mutex);
      work_came.notify_all();
    }
    const auto begin = Clock::now();
    const bool worked = work_from(size) > 0;
    const auto finished = [this, tiles] { return done.load() == tiles; };
    if (!spin_until(CALLER_SPIN, finished)) {
      const auto waits = Clock::now();
      {
        std::unique_lock<std::mutex> lock(mutex);
        caller_sleeps = true;
        all_done.wait(lock, finished);
        caller_sleeps = false;
      }
      if (worked) away = leave.after(waits - begin, Clock::now() - waits, size);
    }
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }
};

Threads::Threads(int count) : count_(std::max(count, 1)), pool_(count > 1 ? new Pool(count - 1) : nullptr) {}

Threads::Threads(const Lent& lent) : count_(std::max(lent.count, 1)), pool_(nullptr), lent_(lent) {}

Threads::~Threads() {
  // A parent's pool cannot be taken down: its threads do not exist here.
  if (pool_ != nullptr && pool_->forked == forks.load()) delete pool_;
}

namespace {

// A call's tiles, which lent threads claim.
struct Claims {
  const int count;
  const std::function<void(int)>& work;
  std::atomic<int> next{0};
  std::mutex mutex;
  std::exception_ptr error;  // written under the mutex

  static void claim(void* claims) noexcept {
    const Environment environment;
    static_cast<Claims*>(claims)->claim_all();
  }

 private:
  void claim_all() {
    try {
      for (int i; (i = next.fetch_add(1)) < count;) work(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!error) error = std::current_exception();
    }
  }
};

}  // namespace

void Threads::run(int count, const std::function<void(int)>& work, Sharing sharing) {
  if (lent_.on_each != nullptr && count_ > 1 && count > 1) {
    Claims claims{count, work, {0}, {}, {}};
    lent_.on_each(Claims::claim, &claims);
    if (claims.error) std::rethrow_exception(claims.error);
    return;
  }
  if (pool_ == nullptr || count == 1) {
    for (int i = 0; i < count; i++) work(i);
    return;
  }
  if (pool_->forked != forks.load()) pool_ = new Pool(pool_->size);
  constexpr int MOST = static_cast<int>(MASK);  // tiles that the state can count
  if (count <= MOST) return pool_->run(count, work, sharing);
  for (int first = 0, now; first < count; first += now) {
    now = std::min(count - first, MOST);
    pool_->run(now, [&work, first](int tile) { work(first + tile); }, sharing);
  }
}

}  // namespace kvcast
