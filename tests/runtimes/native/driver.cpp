// Drives threads, products and forks; test_sanitizers.py compiles it with the library's sources.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <dirent.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checks.hpp"
#include "machine.hpp"
#include "gemm.hpp"
#include "program.hpp"

using namespace kvcast;

namespace {

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

// Calls work on three threads of its own, of which the caller is one.
void on_three(void (*work)(void*), void* context) {
  std::thread second(work, context), third(work, context);
  work(context);
  second.join();
  third.join();
}

// So do threads that are lent, and what one of them throws is told.
void share_tiles_of_lent(Random& random) {
  for (int count : {0, 1, 2, 40}) {
    Threads lent(Lent{3, on_three});
    std::vector<int> done(count, 0);
    lent.run(count, [&](int i) { done[i]++; });
    for (int times : done) CHECK(times == 1);
    const int wrong = below(random, 40);
    bool told = false;
    try {
      lent.run(40, [&](int i) {
        if (i == wrong) throw std::runtime_error("this one");
      });
    } catch (const std::runtime_error&) {
      told = true;
    }
    CHECK(told);
  }
}

// More tiles than the threads count at once.
void share_many_tiles() {
  Threads pool(2);
  std::vector<uint8_t> done((1 << 20) + 5, 0);
  pool.run(static_cast<int>(done.size()), [&](int i) { done[i]++; });
  for (uint8_t times : done) CHECK(times == 1);
}

// A tile that takes for ever holds nobody up: it ends once all the others are done. Each call has threads of
// its own, as such a tile may send others on leave, and then nobody would be there for the next one's.
void wait_for_nobody() {
  for (int threads = 2; threads <= 4; threads++) {
    for (int call = 0; call < 20; call++) {
      Threads pool(threads);
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

// How often a thread has slept.
long sleeps(long thread) {
  long count = 0;
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  for (std::string word; status >> word;)
    if (word == "voluntary_ctxt_switches:") status >> count;
  return count;
}

// Whoever is on leave sleeps through the calls of the others. How long a leave is, is up to the system: one of many
// is enough.
void sleep_on_leave() {
  Threads pool(3);
  std::mutex mutex;
  std::set<long> workers;
  const long caller = syscall(SYS_gettid);
  constexpr int CALLS = 40;
  for (int trial = 0; trial < 100; trial++) {
    pool.run(6, [&](int) {
      const long me = syscall(SYS_gettid);
      usleep(me == caller ? 20 : 3000);  // which sends one on leave
      const std::lock_guard<std::mutex> lock(mutex);
      if (me != caller) workers.insert(me);
    });
    std::vector<long> before;
    for (long worker : workers) before.push_back(sleeps(worker));
    for (int call = 0; call < CALLS; call++) {
      usleep(100);  // so that the others sleep
      pool.run(2, [](int) {});
    }
    long least = CALLS, most = 0;
    size_t i = 0;
    for (long worker : workers) {
      const long now = sleeps(worker) - before[i++];
      least = std::min(least, now);
      most = std::max(most, now);
    }
    if (workers.size() == 2 && least <= 2 && most >= CALLS / 2) return;
  }
  CHECK(!"whoever is on leave is woken");
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

std::vector<float> floats(Random& random, size_t count) {
  std::vector<float> numbers(count);
  for (float& one : numbers) one = number(random);
  return numbers;
}

// A random product: its numbers end where their memory ends.
struct Trial {
  Format format;
  int outputs, inputs, rows;
  std::vector<float> x, scales, bias;
  std::vector<uint8_t> codes;

  explicit Trial(Random& random)
      : format(static_cast<Format>(below(random, BUNDLE_FORMATS))),
        outputs(1 + below(random, 200)),
        inputs(1 + below(random, below(random, 4) ? 200 : 1300)),
        rows(1 + below(random, below(random, 3) ? 20 : 150)),
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

// Lines of a cache, [count, head_dim] as its numbers are.
std::vector<uint8_t> cached(const Machine& machine, Random& random, Number number, int count, int head_dim) {
  const size_t line = line_bytes(number, head_dim);
  std::vector<uint8_t> lines(count * line);
  for (int i = 0; i < count; i++)
    machine.with.attention.store(floats(random, head_dim).data(), head_dim, number, lines.data() + i * line);
  return lines;
}

// From one head to the next where each has `positions` lines: bytes of int8, else numbers.
size_t head_stride(Number number, int positions, int head_dim) {
  return positions * (number == Number::INT8 ? line_bytes(number, head_dim) : head_dim);
}

Number any_number(Random& random) {
  constexpr Number ALL[] = {Number::F32, Number::F16, Number::INT8};
  return ALL[below(random, 3)];
}

// Attention of random sizes, the same for the same random numbers; everything that it wrote.
std::vector<float> attend_to_cache(Machine& machine, Random random) {
  const int rows = 1 + below(random, 4), positions = 1 + below(random, 9), shared = 1 + below(random, 3);
  const int key_heads = 1 + below(random, 3), heads = shared * key_heads, head_dim = 2 * (1 + below(random, 40));
  const int capacity = positions + below(random, 150), lines = rows * positions, half = head_dim / 2;
  std::vector<int32_t> lengths(rows);
  for (int32_t& length : lengths) length = below(random, capacity - positions + 1);
  std::vector<float> query = floats(random, lines * heads * head_dim), out(query.size());
  std::vector<float> key = floats(random, lines * key_heads * head_dim), value = floats(random, key.size());
  const std::vector<float> cosines = floats(random, capacity * half), sines = floats(random, capacity * half);
  const Number number = any_number(random);
  std::vector<uint8_t> keys = cached(machine, random, number, rows * key_heads * capacity, head_dim), values = keys;
  const size_t head = head_stride(number, capacity, head_dim), row = head * key_heads;
  SelfAttention call{rows, positions, heads, key_heads, head_dim, capacity};
  call.query = {query.data(), static_cast<size_t>(heads) * head_dim};
  call.key = {key.data(), static_cast<size_t>(key_heads) * head_dim};
  call.value = {value.data(), call.key.stride};
  call.key_cache = {keys.data(), number, row, head};
  call.value_cache = {values.data(), number, row, head};
  call.lengths = lengths.data();
  call.scale = 0.125f;
  call.causal = true;
  call.prompt = below(random, 2);
  call.cosines = cosines.data();
  call.sines = sines.data();
  // In half of the trials an input beside the cache, of each row or of all.
  const int each = below(random, 2) ? rows : 1, inputs = rows / each, sources = 1 + below(random, 150);
  std::vector<int32_t> held(inputs);
  for (int32_t& length : held) length = 1 + below(random, sources);
  const Number other = any_number(random);
  std::vector<uint8_t> cross = cached(machine, random, other, inputs * key_heads * sources, head_dim);
  if (below(random, 2)) {
    const size_t cross_head = head_stride(other, sources, head_dim);
    call.cross_key = {cross.data(), other, cross_head * key_heads, cross_head};
    call.cross_value = call.cross_key;
    call.cross_lengths = held.data();
    call.cross_positions = sources;
    call.rows_each = each;
  }
  call.out = {out.data(), call.query.stride};
  self_attention(machine, call);
  out.insert(out.end(), keys.begin(), keys.end());
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

std::vector<float> attend_to_inputs(Machine& machine, Random random) {
  const int inputs = 1 + below(random, 4), each = 1 + below(random, 6), key_heads = 1 + below(random, 3);
  const int heads = key_heads * (1 + below(random, 3));
  const int head_dim = 1 + below(random, 80), positions = 1 + below(random, 150);
  std::vector<int32_t> lengths(inputs);
  for (int32_t& length : lengths) length = 1 + below(random, positions);
  std::vector<float> query = floats(random, inputs * each * heads * head_dim), out(query.size());
  const Number number = any_number(random);
  std::vector<uint8_t> key = cached(machine, random, number, inputs * key_heads * positions, head_dim);
  std::vector<uint8_t> value = cached(machine, random, number, inputs * key_heads * positions, head_dim);
  const size_t head = head_stride(number, positions, head_dim), width = static_cast<size_t>(heads) * head_dim;
  CrossAttention call{inputs, each, heads, key_heads, head_dim, positions};
  call.query = {query.data(), width};
  call.key = {key.data(), number, head * key_heads, head};
  call.value = {value.data(), number, head * key_heads, head};
  call.lengths = lengths.data();
  call.scale = 0.125f;
  call.new_positions = 1;
  call.out = {out.data(), width};
  cross_attention(machine, call);
  return out;
}

std::vector<float> attend_to_all(Machine& machine, Random random) {
  const int inputs = 1 + below(random, 3), positions = 1 + below(random, 150), key_heads = 1 + below(random, 3);
  const int heads = key_heads * (1 + below(random, 2)), half = 1 + below(random, 40), head_dim = 2 * half;
  const size_t width = static_cast<size_t>(heads) * head_dim, key_width = static_cast<size_t>(key_heads) * head_dim;
  std::vector<float> query = floats(random, inputs * positions * width), out(query.size());
  std::vector<float> key = floats(random, inputs * positions * key_width), value = floats(random, key.size());
  const std::vector<float> cosines = floats(random, positions * half), sines = floats(random, positions * half);
  WholeAttention call{inputs, positions, heads, key_heads, head_dim};
  call.query = {query.data(), width};
  call.key = {key.data(), key_width};
  call.value = {value.data(), key_width};
  call.scale = 0.125f;
  // What only exact attention has, and in half of the trials nothing of it. Soft caps are left out: plain has
  // the system's tanh, which differs from one to another.
  if (below(random, 2)) {
    call.window = below(random, 40);
    if (below(random, 2)) call.cosines = cosines.data(), call.sines = sines.data();
  }
  call.exact = below(random, 2) == 0;
  call.out = {out.data(), width};
  whole_attention(machine, call);
  return out;
}

constexpr std::vector<float> (*ATTENTIONS[])(Machine&, Random) = {attend_to_cache, attend_to_inputs, attend_to_all};

bool alike(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void attend_alike(Random& random, int trials) {
  for (const Instructions* with : sets())
    for (int i = 0; i < trials; i++)
      for (const auto attend : ATTENTIONS) {
        const Random numbers(random());
        Machine one{*with, Threads(1), {}}, more{*with, Threads(2 + i % 4), {}};
        CHECK(alike(attend(more, numbers), attend(one, numbers)));
      }
}

// A digest of results' bits, to compare compilers by.
void print_digests() {
  for (const Instructions* with : sets()) {
    uint64_t digest = 14695981039346656037u;  // FNV-1a
    const auto add = [&](const std::vector<float>& numbers) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(numbers.data());
      for (size_t i = 0; i < numbers.size() * sizeof(float); i++) digest = (digest ^ bytes[i]) * 1099511628211u;
    };
    Random random(7);
    Machine machine{*with, Threads(2), {}};
    for (int i = 0; i < 40; i++) {
      const Trial trial(random);
      add(trial.product(machine, 0, trial.rows));
      for (const auto attend : ATTENTIONS) add(attend(machine, Random(random())));
    }
    std::printf("%s %016llx\n", with->name, static_cast<unsigned long long>(digest));
  }
}

void run_several_machines(int seed, int trials) {
  std::vector<std::thread> users;
  for (int user = 0; user < 3; user++)
    users.emplace_back([=] {
      Random random(seed + user);
      multiply_alike(random, trials);
      attend_alike(random, trials);
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
  const Environment environment;  // as library.cpp has it
  if (std::string(words[1]) == "digests") {
    print_digests();
    return 0;
  }
  if (std::string(words[1]) == "sets") {
    for (const Instructions* with : sets()) std::puts(with->name);
    return 0;
  }
  const int seed = std::atoi(words[1]);
  Random random(seed);
  share_tiles(random, 500);
  share_tiles_of_lent(random);
  share_many_tiles();
  wait_for_nobody();
  leave_and_return();
  sleep_on_leave();
  throw_errors();
  multiply_alike(random, 25);
  attend_alike(random, 25);
  run_several_machines(seed, 8);
#if !defined(__SANITIZE_THREAD__)  // it cannot follow threads into forks, and holds signals back
  fork_after_use(random);
  stop_threads_anywhere(random);
#endif
  std::puts("done");
}
