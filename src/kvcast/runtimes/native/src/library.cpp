// The C interface. kvcast/runtimes/native/library.py declares the same functions.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <exception>

#include "machine.hpp"
#include "export.hpp"
#include "logits.hpp"
#include "operators.hpp"
#include "packing.hpp"
#include "gemm.hpp"
#include "program.hpp"

using namespace kvcast;

namespace {

const Instructions* const ALL[] = {
#if defined(KVCAST_AMX)
    &amx,
#endif
#if defined(__x86_64__)
    &avx512_bf16,
    &avx512_vnni,
#endif
#if defined(KVCAST_AVX_VNNI)
    &avx2_vnni,
#endif
#if defined(__x86_64__)
    &avx2,
#endif
#if defined(__AARCH64EL__)
    &neon_i8mm,
    &neon,
#endif
    &plain,
};

// 0, or 1 with the message of `work`'s exception: no exception goes through code that others compiled.
template <class Work>
int caught(const Work& work, char* message, size_t size) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, size, "%s", error.what());
    return 1;
  }
}

template <class Work>
int told(const Work& work, char* message, size_t size) {
  const Environment environment;
  return caught(work, message, size);
}

}  // namespace

// One call of a machine at a time.
struct kvcast_machine : Machine {
  kvcast_machine(const Instructions& with, int threads) : Machine{with, Threads(threads), {}} {}
};

// Changes whenever an older caller would misunderstand.
EXPORT int kvcast_abi() { return 7; }

// The name of the i-th instruction set that runs here, fastest first; null past the last.
EXPORT const char* kvcast_instructions(int i) {
  for (const Instructions* set : ALL)
    if (set->run_here() && i-- == 0) return set->name;
  return nullptr;
}

// Describes its kernels.
EXPORT const char* kvcast_kernels(const char* instructions) {
  for (const Instructions* set : ALL)
    if (std::strcmp(set->name, instructions) == 0) return set->kernels;
  return nullptr;
}

// Null for instructions that are unknown or do not run here, and where no thread is to be had.
EXPORT kvcast_machine* kvcast_open(const char* instructions, int threads) {
  for (const Instructions* set : ALL) {
    if (std::strcmp(set->name, instructions) != 0 || !set->run_here()) continue;
    try {
      return new kvcast_machine(*set, threads);
    } catch (const std::exception&) {
      return nullptr;
    }
  }
  return nullptr;
}

EXPORT void kvcast_close(kvcast_machine* machine) { delete machine; }

// The points of a grid, as `grid_of` in kernels.hpp says; for the whole process.
EXPORT void kvcast_set_grid(int encoding, const uint8_t* points) { set_grid(static_cast<Encoding>(encoding), points); }

// Bytes of a packed matrix [outputs, inputs].
EXPORT size_t kvcast_packed_bytes(const kvcast_machine* machine, int format, int outputs, int inputs) {
  return packed_bytes(machine->with, static_cast<Format>(format), outputs, inputs);
}

// What `Format` says of codes; scales and bias [outputs] may be null. `packed` is aligned to 64 bytes. Returns as
// kvcast_run does.
EXPORT int kvcast_pack(kvcast_machine* machine, int format, int outputs, int inputs, const void* codes,
                       const float* scales, const float* bias, uint8_t* packed, char* message, size_t size) {
  return told([&] { pack(*machine, static_cast<Format>(format), outputs, inputs, codes, scales, bias, packed); }, message,
              size);
}

// As kvcast_pack, from the rows of a file: an address, an encoding and a factor (null: ones) for each of `outputs`.
EXPORT int kvcast_pack_rows(kvcast_machine* machine, int format, int own, int outputs, int inputs, const uint8_t* const* rows,
                            const int32_t* encodings, const float* factors, const float* bias, uint8_t* packed,
                            char* message, size_t size) {
  const FileRows from = {rows, reinterpret_cast<const Encoding*>(encodings), factors};
  return told([&] { pack_rows(*machine, static_cast<Format>(format), own, outputs, inputs, from, bias, packed); }, message,
              size);
}

// A packed matrix, or `count` of them, one for each expert, for callers of kvcast's operators (operators.hpp). `tiles`
// is a matrix, or the addresses of `count`.
EXPORT void kvcast_describe(const kvcast_machine* machine, int format, int outputs, int inputs, int count,
                            const void* tiles, kvcast_matrix* to) {
  *to = {OPERATORS_VERSION, &operators, &machine->with, format, outputs, inputs, count, tiles};
}

// Bytes of rows of activations as int8.
EXPORT size_t kvcast_rounded_bytes(int rows, int inputs) { return rounded_bytes(rows, inputs); }

// Operations of `turns` multiply-adds in registers on each thread: int8 or fp32.
EXPORT double kvcast_multiply(kvcast_machine* machine, int int8, int64_t turns) {
  const Peaks& peaks = machine->with.peaks;
  std::atomic<double> operations{0};
  machine->threads.run(machine->threads.count(), [&](int) {
    const double done = int8 ? peaks.int8(turns) : peaks.fp32(turns);
    for (double sum = operations; !operations.compare_exchange_weak(sum, sum + done);) {}
  });
  return operations;
}

// Whether a quantised model's prompts are computed otherwise than its steps.
EXPORT int kvcast_prompts_differ(const kvcast_machine* machine) {
  return machine->with.prompt_attention != nullptr;
}

// 0, or 1 with the error in `message`.
EXPORT int kvcast_run(kvcast_machine* machine, const int64_t* program, size_t words, char* message, size_t size) {
  return told([&] { run_program(*machine, program, words); }, message, size);
}

// logits.hpp explains these. Any number of calls of a machine at a time. They return 1 where memory is short, and keep
// how the thread rounds: subnormal logits have an order, too.
EXPORT int kvcast_likeliest(const kvcast_machine* machine, float* logits, size_t stride, int rows, int vocab, int k, int sums,
                            Word* out) {
  return caught([&] { likeliest(machine->with, {logits, stride, rows, vocab}, k, sums != 0, out); }, nullptr, 0);
}

EXPORT int kvcast_draw(const kvcast_machine* machine, const float* logits, int vocab, float temperature, int top_k,
                       double top_p, double min_p, double number, int64_t* token) {
  const Sampling of = {temperature, top_k, top_p, min_p};
  return caught([&] { *token = draw(machine->with, logits, vocab, of, number); }, nullptr, 0);
}

EXPORT int kvcast_penalise(const kvcast_machine*, float* logits, size_t stride, int rows, int vocab, const int64_t* tokens,
                           size_t tokens_stride, int count, float repetition, double presence, double frequency) {
  const LogitRows all = {logits, stride, rows, vocab};
  const Penalties of = {repetition, presence, frequency};
  return caught([&] { penalise(all, tokens, tokens_stride, count, of); }, nullptr, 0);
}

EXPORT int kvcast_apply_timestamp_rules(const kvcast_machine* machine, float* logits, size_t stride, int rows, int vocab,
                                        const int64_t* written, size_t written_stride, int count, int begin, int end,
                                        int end_of_text, int no_timestamps) {
  const LogitRows all = {logits, stride, rows, vocab};
  const TimestampRules of = {begin, end, end_of_text, no_timestamps};
  return caught([&] { apply_timestamp_rules(machine->with, all, written, written_stride, count, of); }, nullptr, 0);
}
