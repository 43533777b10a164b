// Drives threads, products and forks; test_sanitizers.py compiles it with the library's sources.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <atomic>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.hpp"
#include "products.hpp"

using namespace kvcast;

#define CHECK(met)                                                        \
  do {                                                                    \
    if (!(met)) {                                                         \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #met);      \
      std::_Exit(1);                                                      \
    }                                                                     \
  } while (0)

namespace {

using Random = std::mt19937;

int below(Random& random, int n) { return static_cast<int>(random() % n); }

std::vector<const Instructions*> sets() {
  std::vector<const Instructions*> found{&plain};
#if defined(__x86_64__)
  if (avx512.run_here()) found.push_back(&avx512);
#endif
  return found;
}

// Every tile is done once, whatever came before and however long the threads slept.
void share_tiles(Random& random, int calls) {
  for (int threads = 1; threads <= 5; threads++) {
    Threads pool(threads);
    for (int call = 0; call < calls; call++) {
      const int count = below(random, 40);
      std::vector<int> done(count, 0);  // plain numbers: two threads at one would be a race
      pool.run(count, [&](int i) { done[i]++; });
      for (int times : done) CHECK(times == 1);
      if (below(random, 8) == 0) usleep(below(random, 200));
    }
  }
}

// A tile that takes for ever holds nobody up: it ends once all the others are done.
void wait_for_nobody() {
  for (int threads = 2; threads <= 4; threads++) {
    Threads pool(threads);
    for (int call = 0; call < 20; call++) {
      const int slow = call % 2 * 7;
      std::atomic<int> others{0};
      pool.run(30, [&](int i) {
        if (i != slow) others++;
        else
          while (others.load() < 29) usleep(50);
      });
      CHECK(others == 29);
    }
  }
}

// A long wait sends a thread on leave; calls are right before, during and after.
void leave_and_return() {
  Threads pool(3);
  for (int call = 0; call < 400; call++) {
    std::vector<int> done(6, 0);
    const auto caller = std::this_thread::get_id();
    pool.run(6, [&](int i) {
      done[i]++;
      usleep(std::this_thread::get_id() != caller && call % 40 == 0 ? 3000 : 20);
    });
    for (int times : done) CHECK(times == 1);
  }
}

void throw_errors() {
  for (int threads = 1; threads <= 3; threads++) {
    Threads pool(threads);
    for (int call = 0; call < 50; call++) {
      std::string what;
      std::atomic<int> done{0};
      try {
        pool.run(12, [&](int i) {
          if (i % 5 == 3) throw std::runtime_error("tile");
          done++;
        });
      } catch (const std::runtime_error& error) {
        what = error.what();
      }
      CHECK(what == "tile");
      pool.run(7, [&](int) { done++; });
      CHECK(done >= 7);
    }
  }
}

std::unique_ptr<uint8_t, void (*)(void*)> aligned(size_t bytes) {
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  return {data, std::free};
}

// A random product: its numbers end where their memory ends.
struct Trial {
  Format format;
  int outputs, inputs, rows;
  std::vector<float> x, scales, bias;
  std::vector<uint8_t> codes;

  explicit Trial(Random& random)
      : format(static_cast<Format>(below(random, FORMATS))),
        outputs(1 + below(random, 200)),
        inputs(1 + below(random, 200)),
        rows(1 + below(random, 20)),
        x(floats(random, static_cast<size_t>(rows) * inputs)),
        bias(floats(random, outputs)) {
    const size_t weights = static_cast<size_t>(outputs) * inputs, groups = (inputs + GROUP - 1) / GROUP;
    if (format == Format::F32) {
      const std::vector<float> numbers = floats(random, weights);
      codes.resize(weights * sizeof(float));
      std::memcpy(codes.data(), numbers.data(), codes.size());
      return;
    }
    codes.resize(format == Format::INT4_MIN ? static_cast<size_t>(outputs) * ((inputs + 1) / 2) : weights);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random());
    scales = floats(random, format == Format::INT8 ? outputs : outputs * groups);
    if (format == Format::INT4_MIN) scales.resize(2 * scales.size(), -0.5f);
  }

  static std::vector<float> floats(Random& random, size_t count) {
    std::vector<float> numbers(count);
    for (float& number : numbers) number = static_cast<float>(below(random, 2001) - 1000) / 1000.f;
    return numbers;
  }

  // Rows first .. first + count.
  std::vector<float> product(Machine& machine, int first, int count) const {
    auto tiles = aligned(packed_bytes(machine.with, format, outputs, inputs));
    pack(machine, format, outputs, inputs, codes.data(), scales.empty() ? nullptr : scales.data(), bias.data(),
         tiles.get());
    const float* from = x.data() + static_cast<size_t>(first) * inputs;
    auto bytes = aligned(rounded_bytes(count, inputs));
    Product call{{format, outputs, inputs, tiles.get()}, count};
    if (format == Format::F32) {
      call.x = from;
      call.stride = inputs;
    } else {
      call.in = rounded(bytes.get(), count, inputs);
      round_rows(machine, from, inputs, count, inputs, call.in);
    }
    std::vector<float> out(static_cast<size_t>(count) * outputs);
    call.activation = Activation::SILU;
    call.out = out.data();
    call.out_stride = outputs;
    multiply(machine, call);
    return out;
  }
};

// The same bits with any number of threads, and for a row alone.
void multiply_alike(Random& random, int trials) {
  for (const Instructions* with : sets())
    for (int i = 0; i < trials; i++) {
      const Trial trial(random);
      Machine one{*with, Threads(1), {}}, more{*with, Threads(2 + i % 4), {}};
      const std::vector<float> expected = trial.product(one, 0, trial.rows);
      CHECK(trial.product(more, 0, trial.rows) == expected);
      const int row = below(random, trial.rows);
      const std::vector<float> alone = trial.product(more, row, 1);
      CHECK(std::memcmp(alone.data(), expected.data() + static_cast<size_t>(row) * trial.outputs,
                        alone.size() * sizeof(float)) == 0);
    }
}

void run_several_machines(int seed, int trials) {
  std::vector<std::thread> users;
  for (int user = 0; user < 3; user++)
    users.emplace_back([=] {
      Random random(seed + user);
      multiply_alike(random, trials);
    });
  for (std::thread& user : users) user.join();
}

// A fork of a process whose threads sleep, or spin, or were never used; and a fork of that fork.
void fork_after_use(Random& random) {
  for (int i = 0; i < 6; i++) {
    const Trial trial(random);
    std::unique_ptr<Machine> machine(new Machine{*sets().back(), Threads(3), {}});
    const std::vector<float> expected = trial.product(*machine, 0, trial.rows);
    if (i % 3 == 0) usleep(2000);
    const pid_t child = fork();
    if (child == 0) {
      if (i % 2 == 0) CHECK(trial.product(*machine, 0, trial.rows) == expected);
      const pid_t grandchild = fork();
      if (grandchild == 0) CHECK(trial.product(*machine, 0, trial.rows) == expected);
      machine.reset();
      int status = 0;
      if (grandchild != 0) CHECK(waitpid(grandchild, &status, 0) == grandchild && status == 0);
      std::_Exit(0);
    }
    int status = 1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(trial.product(*machine, 0, trial.rows) == expected);
  }
}

// Threads are stopped for a while wherever they are, as a system does that takes their cores away.
void stop_threads_anywhere(Random& random) {
  std::signal(SIGUSR1, [](int) { usleep(500); });
  std::atomic<bool> ending{false};
  std::thread stopper([&] {
    Random own(1);
    while (!ending) {
      DIR* tasks = opendir("/proc/self/task");
      while (const dirent* task = readdir(tasks)) {
        const long id = std::atol(task->d_name);
        if (id > 0 && id != syscall(SYS_gettid) && below(own, 3) == 0) syscall(SYS_tgkill, getpid(), id, SIGUSR1);
      }
      closedir(tasks);
      usleep(300);
    }
  });
  share_tiles(random, 2000);
  ending = true;
  stopper.join();
}

}  // namespace

int main(int, char** words) {
  const int seed = std::atoi(words[1]);
  Random random(seed);
  share_tiles(random, 500);
  wait_for_nobody();
  leave_and_return();
  throw_errors();
  multiply_alike(random, 25);
  run_several_machines(seed, 8);
#if !defined(__SANITIZE_THREAD__)  // it cannot follow threads into forks, and holds signals back
  fork_after_use(random);
  stop_threads_anywhere(random);
#endif
  std::puts("done");
}
