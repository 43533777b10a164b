// Holds every instruction set that runs here against the plain one: random sizes, buffers that end where memory
// ends, NaN in what must not be read. Prints the names of those that were held.
//
// Python's tests do the same through whole instructions; this runs where there is no Python, as under an emulator.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "amx/tiles.hpp"
#include "checks.hpp"
#include "guarded.hpp"
#include "halves.hpp"
#include "machine.hpp"
#include "plain/plain.hpp"

using namespace kvcast;

namespace {

void round_rows(const Instructions& with, Floats& x, int rows, int inputs, Codes& to) {
  for (int m = 0; m < rows; m++)
    for (int b = 0; b * BLOCK < inputs; b++)
      with.gemm.round(x.data() + m * inputs + b * BLOCK, std::min(BLOCK, inputs - b * BLOCK),
                          to.rounded.row(m).block(b));
}

// Rows of all sizes, among them zeros, subnormal numbers, infinity and NaN.
void fill_rows(Random& random, Floats& x, int rows, int inputs) {
  for (int m = 0; m < rows; m++) {
    const float scale = std::pow(10.f, static_cast<float>(below(random, 60) - 40));
    for (int k = 0; k < inputs; k++) x[m * inputs + k] = number(random) * (below(random, 3) ? 1 : scale);
    if (below(random, 8) == 0) x[m * inputs + below(random, inputs)] = below(random, 2) ? NOT : INFINITY;
  }
}

// Whole numbers of 8 bits, as a large block has them.
void fill_bytes(Random& random, Floats& x, bool has_sign) {
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(below(random, 256) - (has_sign ? 128 : 0));
}

void hold_products(const Instructions& with, Random& random) {
  const Format format = static_cast<Format>(below(random, FORMATS));
  const Tiles &tiles = with.gemm.of(format), &expected_tiles = plain.gemm.of(format);
  const bool is_large = kvcast::is_large(format), is_table = has_table(format), has_zero_points = format == Format::INT4_ZERO_POINT;
  const bool is_grouped = is_table || has_zero_points || format == Format::INT6_BLOCK;
  const int multiple = is_large ? LARGE : format == Format::INT4_TABLE_FINE ? FINE : is_grouped ? GROUP : 1;
  const int any_inputs = 1 + below(random, below(random, 4) ? 300 : 1300);
  const int outputs = 1 + below(random, BLOCK), inputs = parts(any_inputs, multiple) * multiple, rows = 1 + below(random, tiles.most_rows);
  const int depth = depth_of(format);
  const size_t weights = static_cast<size_t>(outputs) * inputs, groups = parts(inputs, depth);
  const size_t row_bytes = format == Format::F32 ? 4 * inputs : format == Format::INT4_MIN ? (inputs + 1) / 2 : inputs;
  const bool greatest = below(random, 8) == 0;
  Guarded<uint8_t> stored(outputs * row_bytes);
  if (format == Format::F32)
    for (size_t i = 0; i < weights; i++) {
      const float one = number(random);
      std::memcpy(stored.data() + 4 * i, &one, 4);
    }
  else
    for (size_t i = 0; i < stored.size(); i++) stored[i] = static_cast<uint8_t>(greatest ? 0x80 : random());
  if (is_table || format == Format::INT4_LARGE || has_zero_points)
    for (size_t i = 0; i < stored.size(); i++) stored[i] = greatest ? 15 : stored[i] & 15;
  if (format >= Format::INT6_BLOCK && !is_table && !has_zero_points) {
    const int zero = format == Format::INT6_LARGE_MIN ? 0 : 32, extreme = below(random, 2) ? 63 : 0;
    for (size_t i = 0; i < stored.size(); i++) stored[i] = static_cast<uint8_t>((greatest ? extreme : stored[i] & 63) - zero);
  }
  Floats scales(format == Format::INT8 ? outputs : outputs * groups), least(outputs * groups), bias(outputs);
  fill(random, scales, 0.01f);
  fill(random, least);
  fill(random, bias);
  Floats large_scales(outputs * parts(inputs, LARGE)), large_least(large_scales.size());
  fill(random, large_scales, 0.01f);
  fill(random, large_least);
  if (is_large) {
    fill_bytes(random, scales, is_table || format == Format::INT6_LARGE);
    fill_bytes(random, least, false);
  }
  if (has_zero_points)
    for (size_t i = 0; i < least.size(); i++) least[i] = static_cast<float>(below(random, 128));
  int8_t table[TABLE];
  for (int8_t& entry : table) entry = static_cast<int8_t>(greatest ? -128 : random());
  const Stored from = {stored.data(), scales.data(),  least.data(), below(random, 4) ? bias.data() : nullptr, outputs, inputs,
                       is_large ? large_scales.data() : nullptr, large_least.data(), is_table ? table : nullptr};

  Floats x(static_cast<size_t>(rows) * inputs);
  fill_rows(random, x, rows, inputs);
  if (greatest)
    for (size_t i = 0; i < x.size(); i++) x[i] = -1;
  Codes codes(rows, inputs), expected_codes(rows, inputs);
  round_rows(with, x, rows, inputs, codes);
  round_rows(plain, x, rows, inputs, expected_codes);
  codes.check(expected_codes);

  CHECK(tiles.bytes(inputs) % 64 == 0);
  Guarded<uint8_t> tile(tiles.bytes(inputs)), expected_tile(expected_tiles.bytes(inputs));
  tiles.pack(from, tile.data());
  expected_tiles.pack(from, expected_tile.data());
  Floats line(inputs), expected_line(inputs);
  for (int n = 0; n < outputs; n++) {
    tiles.unpack(tile.data(), inputs, n, line.data());
    expected_tiles.unpack(expected_tile.data(), inputs, n, expected_line.data());
    CHECK(same_bits(line.data(), expected_line.data(), inputs * sizeof(float)));
  }

  const Operand in = format == Format::F32 ? Operand{x.data(), static_cast<size_t>(inputs), {}} : Operand{nullptr, 0, codes.rounded};
  Floats out(rows * BLOCK), expected(rows * BLOCK), alone(BLOCK);
  tiles.multiply(tile.data(), in, inputs, rows, out.data());
  for (int m = 0; m < rows; m++)
    expected_tiles.multiply(expected_tile.data(), in.row(m), inputs, 1, expected.data() + m * BLOCK);
  for (int m = 0; m < rows; m++) {
    float size = 1;
    for (int k = 0; k < inputs; k++) size += std::fabs(x[m * inputs + k]);
    for (int n = 0; n < outputs; n++) {
      const float a = out[m * BLOCK + n], b = expected[m * BLOCK + n];
      CHECK(format == Format::F32 ? near(a, b, 1e-6f * size) || !std::isfinite(size) : same(a, b));
    }
    tiles.multiply(tile.data(), in.row(m), inputs, 1, alone.data());
    for (int n = 0; n < outputs; n++) CHECK(same(alone[n], out[m * BLOCK + n]));
  }
}

constexpr int ACTIVATIONS = 6;  // of products; gates have the sigmoid as well

void hold_endings(const Instructions& with, Random& random) {
  const int count = 1 + below(random, BLOCK);
  Floats x(BLOCK), residual(count), out(count), expected(count);
  fill(random, x, 10);
  fill(random, residual);
  if (below(random, 4) == 0) x[below(random, count)] = NOT;
  std::fill(x.data() + count, x.data() + BLOCK, NOT);
  Codes codes(1, BLOCK), expected_codes(1, BLOCK);
  Epilogue epilogue = {static_cast<Activation>(below(random, ACTIVATIONS))};
  if (below(random, 2)) epilogue.residual = residual.data();
  epilogue.out = expected.data();
  plain.gemm.finish(x.data(), count, epilogue);
  epilogue.out = out.data();
  epilogue.to = &codes.rounded;
  with.gemm.finish(x.data(), count, epilogue);
  for (int i = 0; i < count; i++) CHECK(near(out[i], expected[i], 1e-5f));
  plain.gemm.round(out.data(), count, expected_codes.rounded);
  codes.check(expected_codes);
}

void hold_rows(const Instructions& with, Random& random) {
  const int width = 1 + below(random, 300);
  Floats x(width), gain(width), bias(width), out(width), expected(width);
  fill(random, x, 3);
  for (int i = 0; i < width; i++) x[i] += 2;
  fill(random, gain);
  fill(random, bias);
  const float* const gains = below(random, 2) ? gain.data() : nullptr;
  const float* const biases = below(random, 2) ? bias.data() : nullptr;
  const auto check = [&](float margin) {
    for (int i = 0; i < width; i++) CHECK(near(out[i], expected[i], margin));
  };
  with.rows.layer_norm(x.data(), gains, biases, 1e-5f, width, out.data());
  plain.rows.layer_norm(x.data(), gains, biases, 1e-5f, width, expected.data());
  if (width > 1) check(2e-5f);
  with.rows.rms_norm(x.data(), gains, 1e-5f, width, out.data());
  plain.rows.rms_norm(x.data(), gains, 1e-5f, width, expected.data());
  check(1e-5f);
  const Activation activation = static_cast<Activation>(below(random, ACTIVATIONS + 1));
  with.rows.gate(activation, x.data(), bias.data(), width, out.data());
  plain.rows.gate(activation, x.data(), bias.data(), width, expected.data());
  check(1e-5f);
  const float* const inputs[] = {gain.data(), bias.data()};
  with.rows.convolve(inputs, 2, x.data(), 0, biases, width, out.data());
  plain.rows.convolve(inputs, 2, x.data(), 0, biases, width, expected.data());
  check(1e-4f);
  with.rows.gate(activation, x.data(), bias.data(), width, out.data());
  with.rows.gate(activation, x.data(), bias.data(), width, x.data());
  CHECK(same_bits(x.data(), out.data(), width * sizeof(float)));
}

// Positions together have the bits of positions that come one after the other.
void hold_states(const Instructions& with, Random& random) {
  const int positions = 1 + below(random, 6), key_dim = 1 + below(random, 20), columns = 1 + below(random, STATE_COLUMNS);
  const size_t stride = 2 * key_dim + 1, state_stride = columns + below(random, 3);
  const bool by_channel = below(random, 2);
  const int decays = by_channel ? key_dim : 1;
  Floats keys((positions - 1) * stride + 2 * key_dim), value(positions * columns), gates((decays + 1) * positions);
  Floats state((key_dim - 1) * state_stride + columns), expected_state(state.size()), alone_state(state.size());
  Floats out(positions * columns), expected(positions * columns), alone(positions * columns);
  fill(random, keys, 0.2f);
  fill(random, value);
  fill(random, gates);
  fill(random, state);
  std::copy_n(state.data(), state.size(), expected_state.data());
  std::copy_n(state.data(), state.size(), alone_state.data());
  StateColumns w{};
  w.positions = positions;
  w.key_dim = key_dim;
  w.columns = columns;
  w.by_channel = by_channel;
  w.corrects = by_channel || below(random, 2);
  w.skip = below(random, 2) ? number(random) : 0;
  w.query = keys.data();
  w.key = keys.data() + key_dim;
  w.stride = stride;
  w.value = value.data();
  w.value_stride = w.out_stride = columns;
  w.kept = gates.data();
  w.share = gates.data() + decays * positions;
  w.state = state.data();
  w.state_stride = state_stride;
  w.out = out.data();
  with.rows.state(w);
  w.state = expected_state.data();
  w.out = expected.data();
  plain.rows.state(w);
  for (int i = 0; i < positions * columns; i++) CHECK(near(out[i], expected[i], 1e-4f));
  w.state = alone_state.data();
  w.out = alone.data();
  w.positions = 1;
  for (int s = 0; s < positions; s++) {
    with.rows.state(w);
    w.query += stride;
    w.key += stride;
    w.value += columns;
    w.kept += decays;
    w.share++;
    w.out += columns;
  }
  CHECK(same_bits(alone.data(), out.data(), out.size() * sizeof(float)));
  CHECK(same_bits(alone_state.data(), state.data(), state.size() * sizeof(float)));
}

void hold_rotations(const Instructions& with, Random& random) {
  const int half = 1 + below(random, 70), count = 2 * half;
  Floats x(count), cosines(half), sines(half), out(count), expected(count);
  fill(random, x);
  fill(random, cosines);
  fill(random, sines);
  with.attention.rotate(x.data(), cosines.data(), sines.data(), half, out.data());
  plain.attention.rotate(x.data(), cosines.data(), sines.data(), half, expected.data());
  for (int i = 0; i < count; i++) CHECK(near(out[i], expected[i], 1e-6f));
  Guarded<uint16_t> halves(count), expected_halves(count);
  x[below(random, count)] = 1e-6f;
  x[below(random, count)] = 1e6f;
  with.attention.store(x.data(), count, Number::F16, halves.data());
  plain.attention.store(x.data(), count, Number::F16, expected_halves.data());
  CHECK(same_bits(halves.data(), expected_halves.data(), count * sizeof(uint16_t)));
  with.attention.store(x.data(), count, Number::F32, out.data());
  CHECK(same_bits(out.data(), x.data(), count * sizeof(float)));
}

// A line of an int8 cache, of zeros, infinity and NaN as well.
void hold_codes(const Instructions& with, Random& random) {
  const int count = 1 + below(random, 200), kind = below(random, 8);
  Floats x(count);
  fill(random, x, kind == 0 ? 0 : std::pow(10.f, static_cast<float>(below(random, 40) - 36)));
  if (kind == 1) x[below(random, count)] = NOT;
  if (kind == 2) x[below(random, count)] = -INFINITY;
  Guarded<int8_t> line(line_bytes(Number::INT8, count)), expected(line.size());
  with.attention.store(x.data(), count, Number::INT8, line.data());
  plain.attention.store(x.data(), count, Number::INT8, expected.data());
  float scale, expected_scale;
  std::memcpy(&scale, line.data() + count, sizeof scale);
  std::memcpy(&expected_scale, expected.data() + count, sizeof scale);
  CHECK(same(scale, expected_scale));
  if (std::isfinite(scale)) CHECK(same_bits(line.data(), expected.data(), count));  // else the scale tells it
}

Number any_number(Random& random) {
  constexpr Number ALL[] = {Number::F32, Number::F16, Number::INT8};
  return ALL[below(random, 3)];
}

// A line of a cache. One that is not seen is NaN.
void fill_line(Random& random, Number number, int head_dim, bool is_seen, uint8_t* to) {
  std::vector<float> x(head_dim, NOT);
  for (float& one : x)
    if (is_seen) one = ::number(random);
  plain.attention.store(x.data(), head_dim, number, to);
}

// Positions of keys or values as a cache has them: a stretch and another, each at the end of its memory.
struct Stretches {
  Number number;
  std::vector<std::unique_ptr<Guarded<uint8_t>>> parts;

  Stretches(Random& random, const int counts[2], int head_dim, const std::function<bool(int)>& is_seen)
      : number(any_number(random)) {
    const size_t line = line_bytes(number, head_dim);
    int position = 0;
    for (int i = 0; i < 2; i++) {
      parts.push_back(std::make_unique<Guarded<uint8_t>>(counts[i] * line));
      for (int t = 0; t < counts[i]; t++, position++)
        fill_line(random, number, head_dim, is_seen(position), parts[i]->data() + t * line);
    }
  }
};

// Results [n, padded(d)] for a prompt that has one part.
std::vector<float> attend_to_prompt(const PromptAttention& with, const Part& part) {
  const int width = padded(part.head_dim), groups = (part.queries + PROMPT_LANES - 1) / PROMPT_LANES;
  Guarded<uint8_t> space(with.tile_bytes(part.queries, part.head_dim)), packed(with.part_bytes(part.head_dim));
  const PromptTile tile = {part.head_dim, part.queries, part.softcap, space.data()};
  Floats out(groups * PROMPT_LANES * width);
  with.begin(tile);
  for (int m = 0; m < part.queries; m++) with.take_query(tile, m, part.query + m * width, -INFINITY);
  with.pack(part, packed.data());
  with.attend(tile, packed.data(), part.first, part.last);
  for (int i = 0; i < groups; i++) with.results(tile, i * PROMPT_LANES, out.data() + i * PROMPT_LANES * width);
  return {out.data(), out.data() + part.queries * width};
}

// `expected` [n, padded(d)] are results that are not yet divided by their totals.
void hold_prompt_attention(const Instructions& with, const Part& part, const Softmax* softmax, const float* expected) {
  if (with.prompt_attention == nullptr) return;
  const int width = padded(part.head_dim);
  const std::vector<float> all = attend_to_prompt(*with.prompt_attention, part);
  for (int m = 0; m < part.queries; m++) {
    const float* of_query = all.data() + m * width;
    float error = 0, size = 0;
    for (int d = 0; d < part.head_dim; d++) {
      const float exact = softmax[m].total ? expected[m * width + d] / softmax[m].total : 0;
      error += (of_query[d] - exact) * (of_query[d] - exact);
      size += 1 + exact * exact;
    }
    CHECK(error <= 0.005f * size);
    Part single = part;
    single.queries = 1;
    single.query += m * width;
    single.first += m;
    single.last += m;
    CHECK(same_bits(attend_to_prompt(*with.prompt_attention, single).data(), of_query, width * sizeof(float)));
  }
}

void hold_attention(const Instructions& with, Random& random) {
  const int head_dim = below(random, 3) ? 1 + below(random, 130) : 64, most = with.attention.most_queries;
  const int queries = 1 + below(random, below(random, 2) ? MOST_QUERIES : most);
  const int begin = below(random, 30), all = 1 + below(random, PART - begin);
  const int counts[2] = {below(random, all + 1), 0}, width = padded(head_dim);
  const int both[2] = {counts[0], all - counts[0]};
  std::vector<int> first(queries), last(queries);
  for (int m = 0; m < queries; m++) {
    first[m] = begin + below(random, all);
    last[m] = first[m] + below(random, begin + all - first[m] + 1);
    if (below(random, 2)) first[m] = begin, last[m] = begin + all - below(random, std::min(all, queries));
  }
  const auto is_seen = [&](int t) {
    for (int m = 0; m < queries; m++)
      if (begin + t >= first[m] && begin + t < last[m]) return true;
    return below(random, 2) == 0;  // NaN is in some of the others
  };
  const Stretches keys(random, both, head_dim, is_seen), values(random, both, head_dim, is_seen);
  Floats query(queries * width);
  fill(random, query);
  std::vector<std::unique_ptr<Floats>> bias;
  std::vector<const float*> biases;
  for (int m = 0; m < queries; m++) {
    for (int d = head_dim; d < width; d++) query[m * width + d] = 0;
    bias.push_back(std::make_unique<Floats>(last[m]));  // NaN before the first that is seen
    for (int t = first[m]; t < last[m]; t++) (*bias[m])[t] = number(random);
    biases.push_back(bias[m]->data());
  }
  Part part{};
  part.head_dim = head_dim;
  part.queries = queries;
  part.key_number = keys.number;
  part.value_number = values.number;
  part.begin = begin;
  for (int i = 0; i < 2; i++) {
    part.keys[i] = keys.parts[i]->data();
    part.values[i] = values.parts[i]->data();
    part.counts[i] = both[i];
  }
  part.query = query.data();
  part.first = first.data();
  part.last = last.data();
  part.bias = below(random, 2) ? biases.data() : nullptr;
  part.softcap = below(random, 3) ? 0 : 5.f;

  Floats mixed(queries * width), expected(queries * width), alone(width);
  const auto attend = [&](const Instructions& set, const Part& of, Softmax* softmax, float* to) {
    for (Part now = of; now.queries > 0; now.queries -= set.attention.most_queries) {
      const int count = std::min(now.queries, set.attention.most_queries);
      Part some = now;
      some.queries = count;
      Floats scores(attention_space(count, head_dim));  // a multiple of 64 bytes
      set.attention.attend(some, scores.data(), softmax, to);
      now.query += count * width;
      now.first += count;
      now.last += count;
      if (now.bias) now.bias += count;
      softmax += count;
      to += count * width;
    }
  };
  Softmax softmax[MANY_QUERIES], expected_softmax[MANY_QUERIES], alone_softmax;
  attend(with, part, softmax, mixed.data());
  attend(plain, part, expected_softmax, expected.data());
  for (int m = 0; m < queries; m++) {
    const float total = expected_softmax[m].total, margin = 2e-5f * (1 + total);
    CHECK(near(softmax[m].most, expected_softmax[m].most, 2e-5f) && near(softmax[m].total, total, margin));
    for (int d = 0; total && d < head_dim; d++)
      CHECK(std::isfinite(mixed[m * width + d]) && near(mixed[m * width + d], expected[m * width + d], margin));
    Part one = part;
    one.queries = 1;
    one.query += m * width;
    one.first += m;
    one.last += m;
    if (one.bias) one.bias += m;
    attend(with, one, &alone_softmax, alone.data());
    CHECK(same(alone_softmax.most, softmax[m].most) && same(alone_softmax.total, softmax[m].total));
    CHECK(!total || same_bits(alone.data(), mixed.data() + m * width, head_dim * sizeof(float)));
  }
  part.bias = nullptr;
  attend(plain, part, expected_softmax, expected.data());
  hold_prompt_attention(with, part, expected_softmax, expected.data());
}

void hold_encoder_attention(const Instructions& with, Random& random) {
  const int positions = 1 + below(random, below(random, 4) ? 60 : 400), head_dim = 1 + below(random, 80);
  const size_t stride = head_dim + below(random, 20), numbers = (positions - 1) * stride + head_dim;
  Floats query(numbers), key(numbers), value(numbers), out(numbers), expected(numbers), again(numbers);
  for (int t = 0; t < positions; t++)
    for (int d = 0; d < head_dim; d++) {
      query[t * stride + d] = number(random);
      key[t * stride + d] = number(random);
      value[t * stride + d] = number(random);
    }
  const int zeros = below(random, 2 * positions);  // half of the time none
  for (int d = 0; zeros < positions && d < head_dim; d++) query[zeros * stride + d] = 0;
  std::vector<int> blocks;
  for (int t = 0; t < positions; t += BLOCK) blocks.push_back(t);
  std::shuffle(blocks.begin(), blocks.end(), random);
  const auto attend = [&](const Instructions& set, Floats& to, int cut) {
    Guarded<uint8_t> packed(set.encoder_attention.head_bytes(positions, head_dim));
    const EncoderHead of = {query.data(), key.data(),    value.data(), stride, positions, head_dim,
                            0.3f,         packed.data(), to.data(),    stride};
    for (int first : blocks) set.encoder_attention.pack_head(of, first);
    set.encoder_attention.attend(of, cut, positions);
    set.encoder_attention.attend(of, 0, cut);
  };
  attend(with, out, 0);
  attend(with, again, below(random, positions));
  attend(plain, expected, 0);
  CHECK(same_bits(out.data(), again.data(), numbers * sizeof(float)));  // what lies between rows is NaN still
  // Scores are int8 and values bf16 with AVX-512 and AMX.
  const bool coarse = std::strncmp(with.name, "avx512", 6) == 0 || std::strcmp(with.name, "amx") == 0;
  const float margin = coarse ? 0.05f : 1e-5f;
  for (size_t i = 0; i < numbers; i++) CHECK(near(out[i], expected[i], margin));
}

// Rows of scores have the same bits on all sets, except their exponentials.
void hold_scores(const Instructions& with, Random& random) {
  const Scores &scores = with.scores, &plain_scores = plain.scores;
  const Number number = any_number(random);
  const int head_dim = 1 + below(random, 130);
  Guarded<uint8_t> line(line_bytes(number, head_dim));
  fill_line(random, number, head_dim, true, line.data());
  Floats read(head_dim), expected_read(head_dim);
  scores.read(line.data(), number, head_dim, read.data());
  plain_scores.read(line.data(), number, head_dim, expected_read.data());
  CHECK(same_bits(read.data(), expected_read.data(), head_dim * sizeof(float)));

  const int count = 1 + below(random, 400);
  Floats x(count), out(count), expected(count);
  fill(random, x, below(random, 2) ? 3 : 200);
  if (below(random, 2)) x[below(random, count)] = -INFINITY;
  if (count > 1 || std::isfinite(x[0])) {
    scores.softmax(x.data(), count, out.data());
    plain_scores.softmax(x.data(), count, expected.data());
    CHECK(same_bits(out.data(), expected.data(), count * sizeof(float)));
  }

  const int columns = 1 + below(random, BLOCK), tokens = 1 + below(random, 20);
  const size_t stride = columns + below(random, 9);
  Floats table((tokens - 1) * stride + columns), expected_table(table.size());
  fill(random, table);
  std::memcpy(expected_table.data(), table.data(), table.size() * sizeof(float));
  scores.standardise(table.data(), stride, tokens, columns);
  plain_scores.standardise(expected_table.data(), stride, tokens, columns);
  CHECK(same_bits(table.data(), expected_table.data(), table.size() * sizeof(float)));

  Floats mirrored(count + 6);
  fill(random, mirrored);
  fill(random, out);
  std::memcpy(expected.data(), out.data(), count * sizeof(float));
  scores.add_medians(mirrored.data(), count, out.data());
  plain_scores.add_medians(mirrored.data(), count, expected.data());
  CHECK(same_bits(out.data(), expected.data(), count * sizeof(float)));

  Floats logits(columns), among(columns);
  fill(random, logits, 20);
  for (int i = 0; i < columns; i++) among[i] = below(random, 3) ? 0 : -INFINITY;
  const Softmax found = scores.exponentials(logits.data(), among.data(), columns);
  const Softmax wanted = plain_scores.exponentials(logits.data(), among.data(), columns);
  CHECK(same(found.most, wanted.most) && near(found.total, wanted.total, 1e-5f * wanted.total));
}

#if defined(KVCAST_AMX)

// A matrix of bytes in guarded memory, rows `stride` apart; the last one ends where memory ends.
struct Bytes {
  size_t stride;
  Guarded<uint8_t> all;

  Bytes(Random& random, int rows, int row_bytes)
      : stride(row_bytes + 4 * below(random, 18)), all((rows - 1) * stride + row_bytes) {}

  template <class Number>
  Number& at(int row, int i) {
    return reinterpret_cast<Number*>(all.data() + row * stride)[i];
  }
};

// What kernels take the operations of tiles to be. Of bf16 the order of sums is left open.
template <class Sum, class Code, class Weight, class Fill, class Dot, class Value>
void hold_dot(Random& random, const Fill& fill_all, const Dot& dot, const Value& value, float margin) {
  constexpr int EACH = 4 / sizeof(Code);  // numbers of a sum that lie together
  const int rows = 1 + below(random, 16), columns = 1 + below(random, 16), depth = 1 + below(random, 16);
  Bytes sums(random, rows, 4 * columns), a(random, rows, 4 * depth), b(random, depth, 4 * columns);
  std::vector<Sum> expected(rows * columns);
  fill_all(a.all);
  fill_all(b.all);
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) {
      expected[m * columns + n] = sums.at<Sum>(m, n) = static_cast<Sum>(below(random, 9));
      for (int k = 0; k < depth * EACH; k++)
        expected[m * columns + n] += value(a.at<Code>(m, k)) * value(b.at<Weight>(k / EACH, n * EACH + k % EACH));
    }
  amx_tiles::Shapes shapes;
  shapes.set(0, rows, 4 * columns);
  shapes.set(3, rows, 4 * depth);
  shapes.set(7, depth, 4 * columns);
  amx_tiles::set_shapes(shapes);
  amx_tiles::load<0>(sums.all.data(), sums.stride);
  amx_tiles::load<3>(a.all.data(), a.stride);
  amx_tiles::load<7>(b.all.data(), b.stride);
  dot();
  amx_tiles::store<0>(sums.all.data(), sums.stride);
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) {
      const Sum found = sums.at<Sum>(m, n), wanted = expected[m * columns + n];
      CHECK(margin ? near(static_cast<float>(found), static_cast<float>(wanted), margin) : found == wanted);
    }
  amx_tiles::zero<0>();
  amx_tiles::store<0>(sums.all.data(), sums.stride);
  for (int m = 0; m < rows; m++)
    for (int n = 0; n < columns; n++) CHECK(sums.at<Sum>(m, n) == 0);
  amx_tiles::release();
}

float widened(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

void hold_tiles(const Instructions& with, Random& random) {
  if (std::strcmp(with.name, "amx") != 0) return;
  const auto any = [&](Guarded<uint8_t>& bytes) {
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(random());
  };
  const auto halves = [&](Guarded<uint8_t>& bytes) {  // -2 .. -1 and 1 .. 2
    any(bytes);
    for (size_t i = bytes.size(); i >= 2; i -= 2) bytes[i - 1] = (bytes[i - 1] & 0x80) | 0x3f, bytes[i - 2] |= 0x80;
  };
  // Lambdas: g++ -O1 cannot inline a pointer to a function that must be inlined.
  const auto code = [](int code) { return code; };
  hold_dot<int32_t, int8_t, uint8_t>(random, any, [] { amx_tiles::dot_int8<0, 3, 7>(); }, code, 0);
  hold_dot<int32_t, int8_t, int8_t>(random, any, [] { amx_tiles::dot_signed<0, 3, 7>(); }, code, 0);
  hold_dot<float, uint16_t, uint16_t>(random, halves, [] { amx_tiles::dot_bf16<0, 3, 7>(); }, widened, 1e-4f);
}

// A call of the kernels leaves no tiles behind. The processor would not say so.
void check_released() {
#if defined(KVCAST_EMULATE_AMX)
  CHECK(!amx_tiles::state.has_shapes);
#endif
}

#else

void hold_tiles(const Instructions&, Random&) {}
void check_released() {}

#endif

}  // namespace

int main(int, char** words) {
  const Environment environment;  // as library.cpp has it
  Random random(std::atoi(words[1]));
  const int trials = std::atoi(words[2]);
  for (const Instructions* with : sets()) {
    for (int i = 0; i < trials; i++)
      for (const auto hold : {hold_products, hold_endings, hold_rows, hold_states, hold_rotations, hold_codes, hold_attention,
                              hold_encoder_attention, hold_scores, hold_tiles}) {
        hold(*with, random);
        check_released();
      }
    std::puts(with->name);
  }
}
