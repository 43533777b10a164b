#include "program.hpp"

#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "gemm.hpp"
#include "rows.hpp"

namespace kvcast {
namespace {

// Reads the words of an instruction in order.
class Words {
 public:
  Words(const int64_t* words, size_t count) : words_(words), left_(count) {}

  int64_t take() {
    if (left_ == 0) throw std::invalid_argument("an instruction is too short");
    left_--;
    return *words_++;
  }

  void end() const {
    if (left_ != 0) throw std::invalid_argument("an instruction is too long");
  }

 private:
  const int64_t* words_;
  size_t left_;
};

void read(Words& words, int& to) {
  const int64_t word = words.take();
  if (word < std::numeric_limits<int>::min() || word > std::numeric_limits<int>::max())
    throw std::invalid_argument("a number of an instruction is too large");
  to = static_cast<int>(word);
}

void read(Words& words, int64_t& to) { to = words.take(); }
void read(Words& words, size_t& to) { to = static_cast<size_t>(words.take()); }
void read(Words& words, bool& to) { to = words.take() != 0; }

void read(Words& words, float& to) {
  const int64_t bits = words.take();
  double value;
  std::memcpy(&value, &bits, sizeof value);
  to = static_cast<float>(value);
}

template <class T>
void read(Words& words, T*& to) {
  to = reinterpret_cast<T*>(static_cast<uintptr_t>(words.take()));
}

template <class Enum, class = std::enable_if_t<std::is_enum<Enum>::value>>
void read(Words& words, Enum& to) {
  to = static_cast<Enum>(words.take());
}

template <size_t COUNT>
void read(Words& words, int64_t (&to)[COUNT]) {
  for (int64_t& number : to) read(words, number);
}

#define FIELD(TYPE, NAME) read(words, to.NAME);
#define ENUM(NAME, VALUES)
#define STRUCT(NAME, FIELDS) \
  void read(Words& words, NAME& to) { FIELDS }
#define INSTRUCTION(CODE, NAME, FIELDS)
#include "instructions.def"
#undef STRUCT
#undef INSTRUCTION

void read(Words& words, Arrays& to) {
  read(words, to.count);
  if (to.count < 1 || to.count > MOST_ARRAYS)
    throw std::invalid_argument("an elementwise operation takes one to three arrays");
  for (int i = 0; i < to.count; i++) read(words, to.items[i]);
}

#define STRUCT(NAME, FIELDS)
#define INSTRUCTION(CODE, NAME, FIELDS) \
  void read(Words& words, NAME& to) { FIELDS }
#include "instructions.def"
#undef FIELD
#undef INSTRUCTION

// The address of quantized rows; none for address 0.
struct MaybeRounded {
  Rounded value;
  bool there;

  MaybeRounded(uint8_t* data, int rows, int inputs)
      : value(data != nullptr ? rounded(data, rows, inputs) : Rounded{}), there(data != nullptr) {}
  const Rounded* pointer() const { return there ? &value : nullptr; }
};

void execute(Machine& machine, const ProductWords& w) {
  if (w.gated && w.matrix.outputs % (2 * BLOCK) != 0) throw std::invalid_argument("a gate is not of whole tiles");
  const MaybeRounded to(w.rounded_out, w.rows, w.matrix.outputs / (w.gated ? 2 : 1));
  Product product{};
  product.matrix = w.matrix;
  product.rows = w.rows;
  product.x = w.x;
  product.stride = w.stride;
  product.in = MaybeRounded(w.rounded_x, w.rows, w.matrix.inputs).value;
  product.activation = w.activation;
  product.gated = w.gated;
  product.residual = w.residual;
  product.residual_stride = w.residual_stride;
  product.out = w.out;
  product.out_stride = w.out_stride;
  product.to = to.pointer();
  multiply(machine, product);
}

void execute(Machine& machine, const RoundWords& w) {
  round_rows(machine, w.x, w.stride, w.rows, w.width, MaybeRounded(w.rounded_out, w.rows, w.width).value);
}

void execute(Machine& machine, const LayerNormWords& w) {
  const MaybeRounded to(w.rounded_out, w.rows, w.width);
  layer_norm(machine, {w.x, w.stride, w.rows, w.width, w.out, w.out_stride, to.pointer()}, w.gain, w.bias, w.epsilon);
}

void execute(Machine& machine, const RmsNormWords& w) {
  const MaybeRounded to(w.rounded_out, w.rows, w.width);
  rms_norm(machine, {w.x, w.stride, w.rows, w.width, w.out, w.out_stride, to.pointer()}, w.gain, w.epsilon);
}

void execute(Machine& machine, const GatedWords& w) {
  const MaybeRounded to(w.rounded_out, w.rows, w.width);
  gated(machine, {w.gate, w.stride, w.rows, w.width, w.out, w.out_stride, to.pointer()}, w.up, w.up_stride, w.activation);
}

void execute(Machine& machine, const EmbeddingWords& w) {
  for (int i = 0; i < w.count; i++) {
    if (w.ids[i] < 0 || w.ids[i] >= w.table.outputs) throw std::out_of_range("a token is past the vocabulary");
    unpack_row(machine.with, w.table, static_cast<int>(w.ids[i]), w.out.data + i * w.out.stride);
  }
}

void execute(Machine& machine, const FileEmbeddingWords& w) {
  for (int i = 0; i < w.count; i++) {
    const int64_t id = w.ids[i];
    if (id < 0 || id >= w.limit) throw std::out_of_range("a token is past the vocabulary");
    machine.with.reading.numbers(static_cast<Encoding>(w.encodings[id]), reinterpret_cast<const uint8_t*>(w.rows[id]),
                                 w.width, w.out.data + i * w.out.stride);
  }
}

void execute(Machine& machine, const ElementsWords& w) {
  elementwise(machine, w.operation, w.sizes, w.out, w.inputs.items, w.inputs.count);
}

void execute(Machine& machine, const Gather& w) { gather(machine, w); }

void execute(Machine& machine, const SelfAttention& w) {
  if (w.rows_each < 1) throw std::invalid_argument("an input without rows");
  self_attention(machine, w);
}

void execute(Machine& machine, const HeadProducts& w) { multiply_heads(machine, w); }
void execute(Machine& machine, const PositionSelection& w) { select_positions(machine, w); }
void execute(Machine& machine, const LatentAttention& w) { latent_attention(machine, w); }
void execute(Machine& machine, const ExpandedAttention& w) { expanded_attention(machine, w); }
void execute(Machine& machine, const CrossAttention& w) { cross_attention(machine, w); }
void execute(Machine& machine, const WholeAttention& w) { whole_attention(machine, w); }
void execute(Machine& machine, const Storing& w) { store(machine, w); }

void execute(Machine& machine, const ShortConvolution& w) {
  if (w.length < 1 || w.length > w.slots) throw std::invalid_argument("a convolution is longer than its cache");
  short_convolution(machine, w);
}

void execute(Machine& machine, const RewriteStates& w) {
  if (w.key_heads < 1 || w.value_heads % w.key_heads != 0) throw std::invalid_argument("heads of keys do not fit");
  if (w.decays != 1 && (w.decays != w.key_dim || w.share.data == nullptr))
    throw std::invalid_argument("decays do not fit");
  rewrite_states(machine, w);
}

void execute(Machine& machine, const GatedRecurrence& w) { gated_recurrence(machine, w); }

void execute(Machine& machine, const ChannelConvolution& w) {
  if (w.stride < 1 || w.length < 1 || w.breadth < 1) throw std::invalid_argument("a convolution without a kernel");
  channel_convolution(machine, w);
}

void execute(Machine& machine, const RelativeScores& w) { relative_scores(machine, w); }

void execute(Machine& machine, const Rotation& w) { rotate(machine, w); }
void execute(Machine& machine, const GroupNorm& w) { group_norm(machine, w); }

void execute(Machine& machine, const WindowAttention& w) {
  if (w.first < 0 || w.before < 0 || w.after < 0 || w.first + w.queries > w.positions)
    throw std::invalid_argument("a window is not among the positions");
  window_attention(machine, w);
}

void execute(Machine& machine, const SoftmaxWords& w) {
  if (w.width < 1) throw std::invalid_argument("there are no numbers to share");
  softmax(machine, w);
}

void execute(Machine& machine, const MomentsWords& w) {
  if (w.width < 1) throw std::invalid_argument("there are no numbers to average");
  moments(machine, w);
}

void execute(Machine& machine, const MixtureWords& w) {
  if (w.each < 1 || w.each > w.experts) throw std::invalid_argument("a token goes through one expert to all");
  const Routing& by = w.routing;
  const int of_group = by.groups < 1 ? 0 : w.experts / by.groups;
  if (of_group * by.groups != w.experts || by.groups_each > by.groups || by.groups_each * of_group < w.each ||
      by.best < 1 || by.best > of_group)
    throw std::invalid_argument("a token's groups have no experts for it");
  Mixture mixture{};
  mixture.tokens = w.tokens;
  mixture.experts = w.experts;
  mixture.each = w.each;
  mixture.logits = w.logits;
  mixture.logits_stride = w.logits_stride;
  mixture.gate_up = w.gate_up;
  mixture.down = w.down;
  mixture.x = w.x;
  mixture.stride = w.stride;
  mixture.in = MaybeRounded(w.rounded_x, w.tokens, w.gate_up.inputs).value;
  mixture.activation = w.activation;
  mixture.routing = w.routing;
  mixture.alpha = w.alpha;
  mixture.limit = w.limit;
  mixture.gate_up_bias = w.gate_up_bias;
  mixture.down_bias = w.down_bias;
  mixture.out = w.out;
  mixture.out_stride = w.out_stride;
  mix_experts(machine, mixture);
}

void execute(Machine& machine, const AlignmentScores& w) { alignment_scores(machine, w); }

void execute(Machine& machine, const AttentionByToken& w) {
  if (w.frames < 1 || w.frames > w.positions) throw std::invalid_argument("frames are one to all positions");
  attention_by_token(machine, w);
}

void execute(Machine& machine, const TokenProbabilitiesWords& w) {
  for (int m = 0; m < w.rows; m++)
    if (w.tokens[m] < 0 || w.tokens[m] >= w.matrix.outputs) throw std::out_of_range("a token is past the vocabulary");
  const Operand in = {w.x, w.stride, MaybeRounded(w.rounded_x, w.rows, w.matrix.inputs).value};
  token_probabilities(machine, {w.matrix, w.rows, in, w.tokens, w.among, w.out});
}

void execute(Machine& machine, const Dtw& w) {
  if (w.frames < 1) throw std::invalid_argument("frames are one or more");
  dtw(machine, w);
}

template <class Instruction>
void run(Machine& machine, Words& words) {
  Instruction instruction{};
  read(words, instruction);
  words.end();
  execute(machine, instruction);
}

#define INSTRUCTION(CODE, NAME, FIELDS) run<NAME>,
constexpr void (*OPERATIONS[])(Machine&, Words&) = {
#include "instructions.def"
};
#undef ENUM
#undef STRUCT
#undef INSTRUCTION

constexpr int64_t COUNT = sizeof OPERATIONS / sizeof *OPERATIONS;

}  // namespace

void run_program(Machine& machine, const int64_t* program, size_t words) {
  const int64_t* const end = program + words;
  while (program < end) {
    if (end - program < 2) throw std::invalid_argument("a program ends within an instruction");
    const int64_t code = program[0], length = program[1];
    program += 2;
    if (code < 0 || code >= COUNT) throw std::invalid_argument("an instruction is unknown");
    if (length < 0 || length > end - program) throw std::invalid_argument("a program ends within an instruction");
    Words instruction(program, static_cast<size_t>(length));
    OPERATIONS[code](machine, instruction);
    program += length;
  }
}

}  // namespace kvcast
