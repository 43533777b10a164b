// Holds whole operations (norms, gates, products and what follows them, embeddings, experts, elements, gathering,
// words' places in time, logits) with every instruction set that runs here against the plain one: random sizes, any number of
// threads, buffers that end where memory ends. Prints the names of those that were held.
//
// What operations compute is tested from Python; this is for sanitizers, and for emulators.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "checks.hpp"
#include "guarded.hpp"
#include "halves.hpp"
#include "logits.hpp"
#include "machine.hpp"
#include "plain/plain.hpp"
#include "gemm.hpp"
#include "program.hpp"
#include "rows.hpp"

using namespace kvcast;

namespace {

// Rows with a stride; between them NaN stays.
struct Table {
  int rows, width;
  size_t stride;
  Floats all;

  Table(Random& random, int rows, int width)
      : rows(rows), width(width), stride(width + below(random, 9)), all((rows - 1) * stride + width) {}

  float* row(int m) { return all.data() + m * stride; }

  Table& filled(Random& random, float scale = 1) {
    for (int m = 0; m < rows; m++)
      for (int i = 0; i < width; i++) row(m)[i] = number(random) * scale;
    return *this;
  }

  void check(Table& expected, float margin) {
    for (int m = 0; m < rows; m++) {
      for (int i = 0; i < width; i++) CHECK(near(row(m)[i], expected.row(m)[i], margin));
      for (int i = width; m + 1 < rows && i < static_cast<int>(stride); i++) CHECK(std::isnan(row(m)[i]));
    }
  }
};

// Rows that an operation wrote as floats and rounded.
struct Results {
  Table floats;
  Codes codes;

  Results(Random& random, int rows, int width) : floats(random, rows, width), codes(rows, width) {}

  void check(Results& expected, float margin) {
    floats.check(expected.floats, margin);
    Codes again(floats.rows, floats.width);
    for (int m = 0; m < floats.rows; m++) round_row(plain, floats.row(m), floats.width, again.rounded.row(m));
    codes.check(again);
  }
};

// Both run the same: `run` is given a machine and where results go.
template <class Run>
void hold(Machine& with, Machine& oracle, Random& random, int rows, int width, float margin, const Run& run) {
  Results found(random, rows, width), expected(random, rows, width);
  run(with, found);
  run(oracle, expected);
  found.check(expected, margin);
}

void hold_norms(Machine& with, Machine& oracle, Random& random) {
  const int rows = 1 + below(random, 40), width = 2 + below(random, 400);
  Table x(random, rows, width);
  Floats gain(width), shift(width);
  x.filled(random, 3);
  fill(random, gain);
  fill(random, shift);
  hold(with, oracle, random, rows, width, 1e-4f, [&](Machine& machine, Results& to) {
    layer_norm(machine, {x.row(0), x.stride, rows, width, to.floats.row(0), to.floats.stride, &to.codes.rounded},
               gain.data(), shift.data(), 1e-3f);
  });
  hold(with, oracle, random, rows, width, 1e-5f, [&](Machine& machine, Results& to) {
    rms_norm(machine, {x.row(0), x.stride, rows, width, to.floats.row(0), to.floats.stride, &to.codes.rounded},
             gain.data(), 1e-5f);
  });
  // As codes alone they are those of the floats.
  Codes alone(rows, width), codes(rows, width);
  Table floats(random, rows, width);
  rms_norm(with, {x.row(0), x.stride, rows, width, nullptr, 0, &alone.rounded}, nullptr, 1e-5f);
  rms_norm(with, {x.row(0), x.stride, rows, width, floats.row(0), floats.stride, &codes.rounded}, nullptr, 1e-5f);
  alone.check(codes);
}

Activation any_activation(Random& random) { return static_cast<Activation>(below(random, 6)); }

void hold_gates(Machine& with, Machine& oracle, Random& random) {
  const int rows = 1 + below(random, 40), width = 1 + below(random, 400);
  Table both(random, rows, 2 * width), apart(random, rows, width);
  both.filled(random, 3);
  apart.filled(random, 3);
  const Activation activation = any_activation(random);
  const bool joined = below(random, 2);
  const float* up = joined ? both.row(0) + width : apart.row(0);
  const size_t up_stride = joined ? both.stride : apart.stride;
  hold(with, oracle, random, rows, width, 1e-5f, [&](Machine& machine, Results& to) {
    gated(machine, {both.row(0), both.stride, rows, width, to.floats.row(0), to.floats.stride, &to.codes.rounded},
          up, up_stride, activation);
  });
}

// A matrix as a bundle stores it; small numbers.
struct Weights {
  Format format;
  int outputs, inputs;
  Guarded<uint8_t> codes;
  Floats scales, bias;

  static size_t row_bytes(Format format, int inputs) {
    return format == Format::F32 ? 4 * inputs : format == Format::INT4_MIN ? (inputs + 1) / 2 : inputs;
  }
  static size_t count_scales(Format format, int outputs, int inputs) {
    const size_t groups = static_cast<size_t>(outputs) * parts(inputs, GROUP);
    return format == Format::F32 ? 0 : format == Format::INT8 ? outputs : format == Format::INT8_BLOCK ? groups : 2 * groups;
  }

  Weights(Random& random, Format format, int outputs, int inputs)
      : format(format),
        outputs(outputs),
        inputs(inputs),
        codes(outputs * row_bytes(format, inputs)),
        scales(count_scales(format, outputs, inputs)),
        bias(outputs) {
    for (size_t i = 0; i < codes.size(); i++) codes[i] = static_cast<uint8_t>(random());
    for (size_t i = 0; format == Format::F32 && i < codes.size(); i += 4) {
      const float one = 0.1f * number(random);
      std::memcpy(codes.data() + i, &one, 4);
    }
    fill(random, scales, 1e-3f);
    fill(random, bias);
  }

  std::unique_ptr<Guarded<uint8_t>> packed(Machine& machine) {
    auto tiles = std::make_unique<Guarded<uint8_t>>(packed_bytes(machine.with, format, outputs, inputs));
    pack(machine, format, outputs, inputs, codes.data(), scales.data(), bias.data(), tiles->data());
    return tiles;
  }
};

// A product's input, as its format wants it.
struct Input {
  Table x;
  Codes codes;
  bool is_float;

  Input(Random& random, Format format, int rows, int inputs)
      : x(random, rows, inputs), codes(rows, inputs), is_float(format == Format::F32) {
    x.filled(random);
    for (int m = 0; m < rows; m++) round_row(plain, x.row(m), inputs, codes.rounded.row(m));
  }
  Operand operand() { return is_float ? Operand{x.row(0), x.stride, {}} : Operand{nullptr, 0, codes.rounded}; }
};

Format any_format(Random& random) { return static_cast<Format>(below(random, BUNDLE_FORMATS)); }

void hold_products(Machine& with, Machine& oracle, Random& random) {
  const Format format = any_format(random);
  const bool is_gated = below(random, 2);
  const int rows = 1 + below(random, below(random, 3) ? 12 : 150), inputs = 1 + below(random, 200);
  const int outputs = is_gated ? 2 * BLOCK * (1 + below(random, 2)) : 1 + below(random, 200);
  const int results = is_gated ? outputs / 2 : outputs;
  Weights weights(random, format, outputs, inputs);
  Input in(random, format, rows, inputs);
  Table residual(random, rows, results);
  residual.filled(random);
  const int kind = below(random, 3);  // none, apart, in place
  const Activation activation = any_activation(random);
  hold(with, oracle, random, rows, results, 2e-4f, [&](Machine& machine, Results& to) {
    const auto tiles = weights.packed(machine);
    Product one{};
    one.matrix = {format, outputs, inputs, tiles->data()};
    one.rows = rows;
    const Operand operand = in.operand();
    one.x = operand.x;
    one.stride = operand.stride;
    one.in = operand.rounded;
    one.activation = activation;
    one.gated = is_gated;
    one.out = to.floats.row(0);
    one.out_stride = to.floats.stride;
    one.to = &to.codes.rounded;
    if (kind == 1) one.residual = residual.row(0), one.residual_stride = residual.stride;
    if (kind == 2) {
      for (int m = 0; m < rows; m++) std::memcpy(to.floats.row(m), residual.row(m), results * sizeof(float));
      one.residual = one.out, one.residual_stride = one.out_stride;
    }
    multiply(machine, one);
  });
}

void hold_embeddings(Machine& with, Machine& oracle, Random& random) {
  const Format format = any_format(random);
  const int vocabulary = 1 + below(random, 200), width = 1 + below(random, 200), count = 1 + below(random, 20);
  Weights table(random, format, vocabulary, width);
  Guarded<int64_t> ids(count);
  for (int i = 0; i < count; i++) ids[i] = below(random, vocabulary);
  Table found(random, count, width), expected(random, count, width);
  const auto tiles = table.packed(with), expected_tiles = table.packed(oracle);
  const auto word = [](const void* address) { return static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)); };
  const auto look_up = [&](Machine& machine, const void* tiles, Table& to) {
    constexpr int64_t EMBEDDING = 5, WORDS = 8;
    const int64_t program[] = {EMBEDDING, WORDS, static_cast<int64_t>(format), vocabulary, width, word(tiles), word(ids.data()),
                               count, word(to.row(0)), static_cast<int64_t>(to.stride)};
    run_program(machine, program, sizeof program / sizeof *program);
  };
  look_up(with, tiles->data(), found);
  look_up(oracle, expected_tiles->data(), expected);
  found.check(expected, 0);
  ids[below(random, count)] = below(random, 2) ? -1 : vocabulary;
  bool refused = false;
  try {
    look_up(with, tiles->data(), found);
  } catch (const std::out_of_range&) {
    refused = true;
  }
  CHECK(refused);
}

Routing any_routing(Random& random, int groups, int of_group) {
  Routing routing = OF_CHOSEN;
  routing.sigmoid = below(random, 2);
  routing.normalised = below(random, 2);
  routing.groups = groups;
  routing.groups_each = 1 + below(random, groups);
  routing.best = 1 + below(random, of_group);
  return routing;
}

void hold_experts(Machine& with, Machine& oracle, Random& random) {
  const Format format = any_format(random);
  const int tokens = 1 + below(random, 30), groups = 1 + below(random, 3), of_group = 1 + below(random, 3);
  Routing routing = any_routing(random, groups, of_group);
  const int experts = groups * of_group, each = 1 + below(random, routing.groups_each * of_group);
  Table bias(random, 1, experts);
  bias.filled(random);
  if (below(random, 2)) routing.bias = bias.row(0);
  const int width = 1 + below(random, 150), inner = 1 + below(random, 150);
  std::vector<std::unique_ptr<Weights>> up, down;
  for (int i = 0; i < experts; i++) {
    up.push_back(std::make_unique<Weights>(random, format, 2 * inner, width));
    down.push_back(std::make_unique<Weights>(random, format, width, inner));
  }
  Input in(random, format, tokens, width);
  Table logits(random, tokens, experts);
  logits.filled(random);
  Table found(random, tokens, width), expected(random, tokens, width);
  const auto mix = [&](Machine& machine, Table& to) {
    std::vector<std::unique_ptr<Guarded<uint8_t>>> tiles;
    Guarded<int64_t> ups(experts), downs(experts);
    const auto address = [&](Weights& of) {
      tiles.push_back(of.packed(machine));
      return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tiles.back()->data()));
    };
    for (int i = 0; i < experts; i++) {
      ups[i] = address(*up[i]);
      downs[i] = address(*down[i]);
    }
    Mixture one{};
    one.tokens = tokens;
    one.experts = experts;
    one.each = each;
    one.logits = logits.row(0);
    one.logits_stride = logits.stride;
    const Operand operand = in.operand();
    one.x = operand.x;
    one.stride = operand.stride;
    one.in = operand.rounded;
    one.gate_up = {format, 2 * inner, width, ups.data()};
    one.down = {format, width, inner, downs.data()};
    one.activation = Activation::SILU;
    one.routing = routing;
    one.out = to.row(0);
    one.out_stride = to.stride;
    mix_experts(machine, one);
  };
  mix(with, found);
  mix(oracle, expected);
  float most = 1;
  for (int m = 0; m < tokens; m++)
    for (int i = 0; i < width; i++) most = std::max(most, std::fabs(expected.row(m)[i]));
  found.check(expected, (format == Format::F32 ? 1e-4f : 2e-2f) * most);  // between products results are rounded
}

size_t size_of(Dtype dtype) { return dtype == Dtype::I64 ? 8 : dtype == Dtype::F16 ? 2 : dtype == Dtype::BOOL ? 1 : 4; }

// An array whose last number ends where memory ends; some are repeated along an axis.
struct Values {
  Guarded<uint8_t> bytes;
  Array array;

  Values(Random& random, Dtype dtype, const int64_t sizes[DIMS], bool repeated) : bytes(count(sizes) * size_of(dtype)), array{} {
    array.data = bytes.data();
    array.dtype = dtype;
    int order[DIMS] = {0, 1, 2, 3};
    if (below(random, 2)) std::shuffle(order, order + DIMS, random);
    int64_t stride = 1;
    for (int i = DIMS - 1; i >= 0; i--) {
      array.strides[order[i]] = stride;
      stride *= sizes[order[i]];
    }
    if (repeated) array.strides[below(random, DIMS)] = 0;
    for (size_t i = 0; i < count(sizes); i++) set(i, random);
  }

  static size_t count(const int64_t sizes[DIMS]) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

 private:
  void set(size_t i, Random& random) {
    const int whole = below(random, 2000) - 1000;
    const float strange[] = {NOT, INFINITY, -INFINITY, 3e9f, -3e38f, 1e-42f, -0.f};
    const float real = below(random, 8) ? static_cast<float>(whole) / 64 : strange[below(random, 7)];
    const uint16_t half = to_half(real);
    const int32_t narrow = whole;
    const int64_t wide = whole;
    const uint8_t truth = whole > 0;
    const void* const from[] = {&real, &half, &narrow, &wide, &truth};
    std::memcpy(bytes.data() + i * size_of(array.dtype), from[static_cast<int>(array.dtype)], size_of(array.dtype));
  }
};

void hold_elements(Machine& with, Machine& oracle, Random& random) {
  const auto any_dtype = [&] { return static_cast<Dtype>(below(random, 5)); };
  const Element operation = static_cast<Element>(below(random, 16));
  const int64_t sizes[DIMS] = {1 + below(random, 4), 1 + below(random, 4), 1 + below(random, 4),
                               1 + below(random, below(random, 4) ? 20 : 2000)};
  const int count = operation == Element::WHERE ? 3 : operation == Element::COPY || operation >= Element::TANH ? 1 : 2;
  const Dtype dtype = operation == Element::DIV ? Dtype::F32 : any_dtype();  // integers aren't divided
  std::vector<std::unique_ptr<Values>> kept;
  Array inputs[3] = {};
  for (int i = 0; i < count; i++) {
    const bool is_condition = operation == Element::WHERE && i == 0;
    kept.push_back(std::make_unique<Values>(random, is_condition ? Dtype::BOOL : any_dtype(), sizes, below(random, 2)));
    inputs[i] = kept.back()->array;
  }
  Random same_layout = random;
  Values found(random, dtype, sizes, false), expected(same_layout, dtype, sizes, false);
  elementwise(with, operation, sizes, found.array, inputs, count);
  elementwise(oracle, operation, sizes, expected.array, inputs, count);
  for (size_t i = 0; i < found.bytes.size(); i += size_of(dtype)) {
    float a = 0, b = 0;
    if (dtype == Dtype::F32) std::memcpy(&a, found.bytes.data() + i, 4), std::memcpy(&b, expected.bytes.data() + i, 4);
    CHECK((std::isnan(a) && std::isnan(b)) || same_bits(found.bytes.data() + i, expected.bytes.data() + i, size_of(dtype)));
  }
}

void hold_conversions(Machine& with, Machine&, Random&) {
  const float cases[] = {NOT, INFINITY, -INFINITY, 1e30f, -1e30f, 2147483648.f, -2147483648.f, 1.75f, -1.75f};
  const int32_t expected[] = {0, INT_MAX, INT_MIN, INT_MAX, INT_MIN, INT_MAX, INT_MIN, 1, -1};
  const int64_t sizes[DIMS] = {1, 1, 1, 9};
  Guarded<int32_t> found(9);
  const Array in = {const_cast<float*>(cases), Dtype::F32, {9, 9, 9, 1}}, out = {found.data(), Dtype::I32, {9, 9, 9, 1}};
  elementwise(with, Element::COPY, sizes, out, &in, 1);
  CHECK(same_bits(found.data(), expected, sizeof expected));
}

void hold_gathering(Machine& with, Machine&, Random& random) {
  const int outer = 1 + below(random, 5), axis = 1 + below(random, 9), inner = 1 + below(random, below(random, 4) ? 30 : 9000);
  const int count = 1 + below(random, 20);
  Floats x(static_cast<size_t>(outer) * axis * inner), out(static_cast<size_t>(outer) * count * inner);
  fill(random, x);
  Guarded<int64_t> index(count);
  for (int j = 0; j < count; j++) index[j] = below(random, axis);
  gather(with, {{outer, count, inner}, index.data(), axis, x.data(), {axis * inner, inner, 1}, out.data(), {inner, outer * inner, 1}});
  for (int i = 0; i < outer; i++)
    for (int j = 0; j < count; j++)
      CHECK(same_bits(out.data() + (j * outer + i) * inner, x.data() + (i * axis + index[j]) * inner, inner * sizeof(float)));
}

void hold_words(Machine& with, Machine& oracle, Random& random) {
  constexpr Number NUMBERS[] = {Number::F32, Number::F16, Number::INT8};
  const int heads = 1 + below(random, 4), tokens = 1 + below(random, 20), positions = 1 + below(random, 200);
  const int head_dim = 1 + below(random, 80), frames = 1 + below(random, positions);
  const Number number = NUMBERS[below(random, 3)];
  const size_t line = line_bytes(number, head_dim);
  std::vector<std::unique_ptr<Guarded<uint8_t>>> keys;
  Guarded<int64_t> addresses(heads);
  Floats numbers(head_dim);
  for (int head = 0; head < heads; head++) {
    keys.push_back(std::make_unique<Guarded<uint8_t>>(positions * line));
    for (int t = 0; t < positions; t++) {
      fill(random, numbers);
      plain.attention.store(numbers.data(), head_dim, number, keys.back()->data() + t * line);
    }
    addresses[head] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(keys.back()->data()));
  }
  Table query(random, tokens, heads * head_dim);
  query.filled(random);
  Floats scores(static_cast<size_t>(heads) * tokens * positions), expected_scores(scores.size());
  const auto score = [&](Machine& machine, Floats& to) {
    alignment_scores(machine, {heads, tokens, positions, head_dim, {query.row(0), query.stride}, 0.125f, number, addresses.data(), to.data()});
  };
  score(with, scores);
  score(oracle, expected_scores);
  for (size_t i = 0; i < scores.size(); i++) CHECK(near(scores[i], expected_scores[i], 1e-5f));

  Floats weights(static_cast<size_t>(tokens) * frames), expected_weights(weights.size());
  attention_by_token(with, {heads, tokens, positions, frames, expected_scores.data(), weights.data()});
  attention_by_token(oracle, {heads, tokens, positions, frames, expected_scores.data(), expected_weights.data()});
  CHECK(same_bits(weights.data(), expected_weights.data(), weights.size() * sizeof(float)));

  Guarded<int64_t> first(tokens), expected_first(tokens);
  dtw(with, {tokens, frames, weights.data(), first.data()});
  dtw(oracle, {tokens, frames, weights.data(), expected_first.data()});
  CHECK(same_bits(first.data(), expected_first.data(), tokens * sizeof(int64_t)));

  const Format format = any_format(random);
  const int vocabulary = 1 + below(random, 900), inputs = 1 + below(random, 100);
  Weights matrix(random, format, vocabulary, inputs);
  Input in(random, format, tokens, inputs);
  Guarded<int64_t> chosen(tokens);
  Floats among(vocabulary), found(tokens), expected(tokens);
  for (int i = 0; i < vocabulary; i++) among[i] = below(random, 4) ? 0 : -INFINITY;
  for (int i = 0; i < tokens; i++) among[chosen[i] = below(random, vocabulary)] = 0;
  const auto tell = [&](Machine& machine, Floats& to) {
    const auto tiles = matrix.packed(machine);
    TokenProbabilities one{};
    one.matrix = {format, vocabulary, inputs, tiles->data()};
    one.rows = tokens;
    one.in = in.operand();
    one.tokens = chosen.data();
    one.among = among.data();
    one.out = to.data();
    token_probabilities(machine, one);
  };
  tell(with, found);
  tell(oracle, expected);
  for (int i = 0; i < tokens; i++) CHECK(near(found[i], expected[i], 1e-4f * expected[i]));
}

// Rows of logits with a stride, some of them masked; each set has its own exponentials.
void hold_logits(Machine& with, Machine& oracle, Random& random) {
  const int rows = 1 + below(random, 3), vocab = 1 + below(random, below(random, 2) ? 3000 : 40), stride = vocab + below(random, 9);
  Floats x((rows - 1) * stride + vocab);
  for (size_t i = 0; i < x.size(); i++) x[i] = below(random, 9) ? static_cast<float>(below(random, 400)) / 8 : -INFINITY;
  if (below(random, 4) == 0) x[below(random, vocab)] = NOT;
  const LogitRows logits = {x.data(), static_cast<size_t>(stride), rows, vocab};
  const int k = below(random, vocab + 1);
  Guarded<Word> out(rows * (2 * k + 1)), expected(out.size());
  likeliest(with.with, logits, k, true, out.data());
  likeliest(oracle.with, logits, k, true, expected.data());
  for (size_t i = 0; i < out.size(); i++) {
    const bool is_sum = static_cast<int>(i % (2 * k + 1)) == 2 * k;
    CHECK(is_sum ? near(out[i].number, expected[i].number, 1e-5f) : out[i].token == expected[i].token);
  }
  const double top_p = below(random, 2) ? 1 : (1 + below(random, 99)) / 100.;
  const Sampling of = {0.1f + below(random, 30), below(random, 2) * below(random, 2 * vocab), top_p, below(random, 2) / 10.};
  const int64_t token = draw(with.with, x.data(), vocab, of, below(random, 1000) / 1000.);
  CHECK(-1 <= token && token < vocab && (token < 0 || std::isfinite(x[token])));
  const int count = 1 + below(random, 9), begin = below(random, vocab + 1), end = begin + below(random, vocab - begin + 1);
  Guarded<int64_t> seen(rows * count);
  for (size_t i = 0; i < seen.size(); i++) seen[i] = below(random, vocab);
  Floats twin(x.size());
  std::copy(x.data(), x.data() + x.size(), twin.data());
  const TimestampRules rules = {begin, end, below(random, begin + 1), below(random, vocab)};
  apply_timestamp_rules(with.with, logits, seen.data(), count, count, rules);
  apply_timestamp_rules(oracle.with, {twin.data(), logits.stride, rows, vocab}, seen.data(), count, count, rules);
  for (size_t i = 0; i < x.size(); i++) CHECK(same(x[i], twin[i]));
  penalise(logits, seen.data(), count, count, {1.5f, 0.5, -0.25});
}

}  // namespace

int main(int, char** words) {
  const Environment environment;  // as library.cpp has it
  Random random(std::atoi(words[1]));
  const int trials = std::atoi(words[2]);
  Machine oracle{plain, Threads(1), {}};
  for (const Instructions* set : sets()) {
    Machine one{*set, Threads(1), {}}, three{*set, Threads(3), {}};
    for (int i = 0; i < trials; i++)
      for (const auto hold : {hold_norms, hold_gates, hold_products, hold_embeddings, hold_experts, hold_elements,
                              hold_conversions, hold_gathering, hold_words, hold_logits})
        hold(below(random, 2) ? one : three, oracle, random);
    std::puts(set->name);
  }
}
