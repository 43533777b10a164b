#include "program.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "alignment.hpp"
#include "attention.hpp"
#include "elements.hpp"
#include "experts.hpp"
#include "products.hpp"
#include "rows.hpp"

namespace kvcast {
namespace {

// Takes the words of an instruction one by one.
class Words {
 public:
  Words(const int64_t* words, size_t count) : words_(words), left_(count) {}

  int64_t take() {
    if (left_ == 0) throw std::invalid_argument("an instruction is too short");
    left_--;
    return *words_++;
  }
  operator int() {
    const int64_t word = take();
    if (word < std::numeric_limits<int>::min() || word > std::numeric_limits<int>::max())
      throw std::invalid_argument("a number of an instruction is too large");
    return static_cast<int>(word);
  }
  operator int64_t() { return take(); }
  operator size_t() { return static_cast<size_t>(take()); }
  operator bool() { return take() != 0; }
  operator float() {
    const int64_t bits = take();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<float>(value);
  }
  template <class T>
  operator T*() {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(take()));
  }
  template <class Enum, class = std::enable_if_t<std::is_enum<Enum>::value>>
  operator Enum() {
    return static_cast<Enum>(take());
  }

  void end() const {
    if (left_ != 0) throw std::invalid_argument("an instruction is too long");
  }

 private:
  const int64_t* words_;
  size_t left_;
};

// Members are read in the order of a braced list, which C++ guarantees.
Matrix matrix(Words& w) { return {w, w, w, w}; }
Stack stack(Words& w) { return {w, w, w, w}; }
Flat flat(Words& w) { return {w, w}; }
Heads heads(Words& w) { return {w, w, w, w}; }
Bias bias(Words& w) { return {w, w, w, w}; }

// Where rounded rows lie; none for address 0.
struct MaybeRounded {
  Rounded value;
  bool there;

  MaybeRounded(Words& w, int rows, int inputs) {
    uint8_t* data = w;
    there = data != nullptr;
    value = there ? rounded(data, rows, inputs) : Rounded{};
  }
  const Rounded* pointer() const { return there ? &value : nullptr; }
};

void product(Machine& machine, Words& w) {
  Product one{};
  one.matrix = matrix(w);
  one.rows = w;
  one.x = w;
  one.stride = w;
  one.in = MaybeRounded(w, one.rows, one.matrix.inputs).value;
  one.activation = w;
  one.gated = w;
  if (one.gated && one.matrix.outputs % (2 * BLOCK) != 0) throw std::invalid_argument("a gate is not of whole tiles");
  one.residual = w;
  one.residual_stride = w;
  one.out = w;
  one.out_stride = w;
  const MaybeRounded to(w, one.rows, one.matrix.outputs / (one.gated ? 2 : 1));
  one.to = to.pointer();
  w.end();
  multiply(machine, one);
}

void round(Machine& machine, Words& w) {
  const float* x = w;
  const size_t stride = w;
  const int rows = w, inputs = w;
  const MaybeRounded to(w, rows, inputs);
  w.end();
  round_rows(machine, x, stride, rows, inputs, to.value);
}

void layer_norm(Machine& machine, Words& w) {
  const float* x = w;
  const size_t stride = w;
  const int rows = w, width = w;
  const float *gain = w, *shift = w, epsilon = w;
  float* out = w;
  const size_t out_stride = w;
  const MaybeRounded to(w, rows, width);
  w.end();
  kvcast::layer_norm(machine, x, stride, rows, width, gain, shift, epsilon, out, out_stride, to.pointer());
}

void rms_norm(Machine& machine, Words& w) {
  const float* x = w;
  const size_t stride = w;
  const int rows = w, width = w;
  const float *gain = w, epsilon = w;
  float* out = w;
  const size_t out_stride = w;
  const MaybeRounded to(w, rows, width);
  w.end();
  kvcast::rms_norm(machine, x, stride, rows, width, gain, epsilon, out, out_stride, to.pointer());
}

void gated(Machine& machine, Words& w) {
  const float *gate = w, *up = w;
  const size_t stride = w;
  const int rows = w, width = w;
  const Activation activation = w;
  float* out = w;
  const size_t out_stride = w;
  const MaybeRounded to(w, rows, width);
  w.end();
  kvcast::gated(machine, gate, up, stride, rows, width, activation, out, out_stride, to.pointer());
}

void embedding(Machine& machine, Words& w) {
  const Matrix table = matrix(w);
  const int64_t* ids = w;
  const int count = w;
  const Flat out = flat(w);
  w.end();
  for (int i = 0; i < count; i++) {
    if (ids[i] < 0 || ids[i] >= table.outputs) throw std::out_of_range("a token is past the vocabulary");
    unpack_row(machine.with, table, static_cast<int>(ids[i]), out.data + i * out.stride);
  }
}

Array array(Words& w) {
  Array one{};
  one.data = static_cast<uint8_t*>(w);
  one.dtype = w;
  for (int64_t& stride : one.strides) stride = w;
  return one;
}

void elements(Machine& machine, Words& w) {
  const Element operation = w;
  int64_t sizes[DIMS];
  for (int64_t& size : sizes) size = w;
  const Array out = array(w);
  const int count = w;
  if (count < 1 || count > 3) throw std::invalid_argument("an elementwise operation takes one to three arrays");
  Array inputs[3] = {};
  for (int i = 0; i < count; i++) inputs[i] = array(w);
  w.end();
  elementwise(machine, operation, sizes, out, inputs, count);
}

void gathering(Machine& machine, Words& w) {
  Gather one{};
  for (int64_t& size : one.sizes) size = w;
  one.index = w;
  one.limit = w;
  one.in = w;
  for (int64_t& stride : one.in_strides) stride = w;
  one.out = w;
  for (int64_t& stride : one.out_strides) stride = w;
  w.end();
  gather(machine, one);
}

void cached_attention(Machine& machine, Words& w) {
  SelfAttention one{};
  one.rows = w;
  one.new_positions = w;
  one.heads = w;
  one.key_heads = w;
  one.head_dim = w;
  one.capacity = w;
  one.query = flat(w);
  one.key = flat(w);
  one.value = flat(w);
  one.key_cache = heads(w);
  one.value_cache = heads(w);
  one.lengths = w;
  one.scale = w;
  one.softcap = w;
  one.window = w;
  one.causal = w;
  one.cosines = w;
  one.sines = w;
  one.bias = bias(w);
  one.out = flat(w);
  w.end();
  self_attention(machine, one);
}

void input_attention(Machine& machine, Words& w) {
  CrossAttention one{};
  one.inputs = w;
  one.queries_each = w;
  one.heads = w;
  one.head_dim = w;
  one.positions = w;
  one.query = flat(w);
  one.key = heads(w);
  one.value = heads(w);
  one.lengths = w;
  one.scale = w;
  one.bias = bias(w);
  one.new_positions = w;
  one.out = flat(w);
  w.end();
  cross_attention(machine, one);
}

void encoder_attention(Machine& machine, Words& w) {
  WholeAttention one{};
  one.inputs = w;
  one.positions = w;
  one.heads = w;
  one.head_dim = w;
  one.query = flat(w);
  one.key = flat(w);
  one.value = flat(w);
  one.lengths = w;
  one.scale = w;
  one.bias = bias(w);
  one.exact = w;
  one.out = flat(w);
  w.end();
  whole_attention(machine, one);
}

void storing(Machine& machine, Words& w) {
  Storing one{};
  one.count = w;
  one.heads = w;
  one.positions = w;
  one.head_dim = w;
  one.x = w;
  one.stride = w;
  one.head_stride = w;
  one.position_stride = w;
  one.to = heads(w);
  w.end();
  store(machine, one);
}

void mixture(Machine& machine, Words& w) {
  Mixture one{};
  one.tokens = w;
  one.experts = w;
  one.each = w;
  if (one.each < 1 || one.each > one.experts) throw std::invalid_argument("a token goes through one expert to all");
  one.logits = w;
  one.logits_stride = w;
  one.gate_up = stack(w);
  one.down = stack(w);
  one.x = w;
  one.stride = w;
  one.in = MaybeRounded(w, one.tokens, one.gate_up.inputs).value;
  one.activation = w;
  one.out = w;
  one.out_stride = w;
  w.end();
  mix_experts(machine, one);
}

void scoring(Machine& machine, Words& w) {
  AlignmentScores one{};
  one.heads = w;
  one.tokens = w;
  one.positions = w;
  one.head_dim = w;
  one.query = flat(w);
  one.scale = w;
  one.number = w;
  one.keys = w;
  one.out = w;
  w.end();
  alignment_scores(machine, one);
}

void standing_out(Machine& machine, Words& w) {
  StandingOut one{};
  one.heads = w;
  one.tokens = w;
  one.positions = w;
  one.frames = w;
  if (one.frames < 1 || one.frames > one.positions) throw std::invalid_argument("frames are one to all positions");
  one.scores = w;
  one.out = w;
  w.end();
  stand_out(machine, one);
}

void warping(Machine& machine, Words& w) {
  FirstFrames one{};
  one.rows = w;
  one.frames = w;
  if (one.frames < 1) throw std::invalid_argument("frames are one or more");
  one.weights = w;
  one.out = w;
  w.end();
  first_frames(machine, one);
}

void likelihoods(Machine& machine, Words& w) {
  TokenProbabilities one{};
  one.matrix = matrix(w);
  one.rows = w;
  one.in.x = w;
  one.in.stride = w;
  one.in.rounded = MaybeRounded(w, one.rows, one.matrix.inputs).value;
  one.tokens = w;
  one.among = w;
  one.out = w;
  w.end();
  for (int m = 0; m < one.rows; m++)
    if (one.tokens[m] < 0 || one.tokens[m] >= one.matrix.outputs)
      throw std::out_of_range("a token is past the vocabulary");
  token_probabilities(machine, one);
}

// By number, as in kvcast/runtimes/native/instructions.py.
constexpr void (*OPERATIONS[])(Machine&, Words&) = {
    product,   round,     layer_norm,       rms_norm,        gated,            embedding,
    elements,  gathering, cached_attention, input_attention, encoder_attention,
    mixture,   storing,   scoring,          standing_out,     likelihoods,
    warping,
};
constexpr int64_t COUNT = sizeof OPERATIONS / sizeof *OPERATIONS;

}  // namespace

void run_program(Machine& machine, const int64_t* program, size_t words) {
  const int64_t* const end = program + words;
  while (program < end) {
    if (end - program < 2) throw std::invalid_argument("a program ends within an instruction");
    const int64_t number = program[0], length = program[1];
    program += 2;
    if (number < 0 || number >= COUNT) throw std::invalid_argument("an instruction is unknown");
    if (length < 0 || length > end - program) throw std::invalid_argument("a program ends within an instruction");
    Words w(program, static_cast<size_t>(length));
    OPERATIONS[number](machine, w);
    program += length;
  }
}

}  // namespace kvcast
