// Tokens that follow a prompt, from an ExecuTorch file of a decoder-only model, greedily:
//   generate model.pte 32 5 17 3      writes up to 32 tokens after 5 17 3
//
// All that must be known of the model is in the file. The caches are this program's own memory:
// `decode` writes new positions into them where they lie, so a new text needs nothing but a length
// of 0, and a second session nothing but caches of its own.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

using executorch::aten::ScalarType;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::extension::TensorPtr;
using executorch::runtime::EValue;

namespace {

// What came of a call, or the end of the program with one line.
template <typename T>
T require(executorch::runtime::Result<T> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s: error 0x%x\n", what, static_cast<unsigned>(result.error()));
    std::exit(1);
  }
  return std::move(result.get());
}

// A fact that the file gives by a method without arguments.
int64_t fact(Module& model, const char* name) {
  return require(model.execute(name), name)[0].toInt();
}

class Session {
 public:
  // Caches for texts of up to `capacity` positions.
  Session(Module& model, int64_t capacity)
      : model_(model), vocab_(fact(model, "vocab_size")), chunk_(fact(model, "chunk")) {
    const auto method = require(model.method_meta("decode"), "decode");
    const int32_t longest = static_cast<int32_t>(fact(model, "capacity"));
    for (size_t i = kFirstCache; i < method.num_inputs(); ++i) {
      const auto largest = require(method.input_tensor_meta(i), "cache");
      std::vector<int32_t> sizes(largest.sizes().begin(), largest.sizes().end());
      // Positions are axis 1. Those of a layer with a window are as many as the file says.
      if (sizes[1] == longest) sizes[1] = static_cast<int32_t>(capacity);
      size_t count = 1;
      for (const int32_t size : sizes) count *= size;
      memory_.emplace_back(count, 0.0f);
      caches_.push_back(from_blob(memory_.back().data(), sizes, ScalarType::Float));
    }
  }

  // Append tokens, up to a chunk at a time; return the token that is most likely next.
  int64_t append(std::vector<int64_t> tokens) {
    int64_t best = 0;
    for (size_t first = 0; first < tokens.size(); first += chunk_) {
      const int32_t count = std::min<int64_t>(chunk_, tokens.size() - first);
      int32_t length = length_;
      int64_t last = count - 1;
      const TensorPtr given[] = {
          from_blob(&tokens[first], {1, count}, ScalarType::Long),
          from_blob(&length, {1}, ScalarType::Int),
          from_blob(&last, {1}, ScalarType::Long)};
      std::vector<EValue> inputs(std::begin(given), std::end(given));
      inputs.insert(inputs.end(), caches_.begin(), caches_.end());
      const auto outputs = require(model_.execute("decode", inputs), "decode");
      const float* logits = outputs[0].toTensor().const_data_ptr<float>();
      best = std::max_element(logits, logits + vocab_) - logits;
      length_ += count;
    }
    return best;
  }

 private:
  static constexpr size_t kFirstCache = 3;  // after tokens, length and offset
  Module& model_;
  const int64_t vocab_, chunk_;
  std::vector<std::vector<float>> memory_;
  std::vector<TensorPtr> caches_;
  int32_t length_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: generate MODEL.pte STEPS TOKEN...\n");
    return 2;
  }
  Module model(argv[1]);
  const int steps = std::atoi(argv[2]);
  std::vector<int64_t> prompt;
  for (int i = 3; i < argc; ++i) prompt.push_back(std::atoll(argv[i]));
  std::vector<int64_t> ends;
  for (const EValue& end : require(model.execute("end_tokens"), "end_tokens")) {
    ends.push_back(end.toInt());
  }
  Session session(model, static_cast<int64_t>(prompt.size()) + steps);
  int64_t next = session.append(prompt);
  for (int i = 0; i < steps && std::count(ends.begin(), ends.end(), next) == 0; ++i) {
    std::printf("%lld\n", static_cast<long long>(next));
    next = session.append({next});
  }
  return 0;
}
