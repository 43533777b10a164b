// A growing text, with the `decode` method of an ExecuTorch file.
//
// The file has everything that must be known of the model. The caches are the caller's memory, into
// which `decode` writes new positions in place. So a new text just starts with a length of 0, and a
// second session just needs caches of its own.
#pragma once
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

// Returns the result of a call, or ends the program with one line.
template <typename T>
T require(executorch::runtime::Result<T> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s: error 0x%x\n", what, static_cast<unsigned>(result.error()));
    std::exit(1);
  }
  return std::move(result.get());
}

// Returns the numbers of one of the file's constant methods.
inline std::vector<int64_t> constants(Module& model, const char* name) {
  std::vector<int64_t> numbers;
  for (const EValue& value : require(model.execute(name), name)) numbers.push_back(value.toInt());
  return numbers;
}

inline bool contains(const std::vector<int64_t>& numbers, int64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

class Session {
 public:
  // For a text of up to `capacity` positions; `decode` takes `source` after the caches.
  Session(Module& model, int64_t capacity, std::vector<EValue> source = {})
      : model_(model),
        vocab_(constants(model, "vocab_size")[0]),
        chunk_(constants(model, "chunk")[0]),
        source_(std::move(source)) {
    const auto method = require(model.method_meta("decode"), "decode");
    const std::vector<int64_t> rings = constants(model, "rings");
    std::vector<size_t> layers;  // of each cache
    for (const int64_t count : constants(model, "caches")) {
      layers.insert(layers.end(), count, layers.empty() ? 0 : layers.back() + 1);
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      const auto largest = require(method.input_tensor_meta(kFirstCache + i), "cache");
      std::vector<int32_t> sizes(largest.sizes().begin(), largest.sizes().end());
      // Positions are axis 1; a ring has exactly as many as in the file.
      if (rings[layers[i]] == 0) sizes[1] = static_cast<int32_t>(capacity);
      size_t count = 1;
      for (const int32_t size : sizes) count *= size;
      memory_.emplace_back(count, 0.0f);
      caches_.push_back(from_blob(memory_.back().data(), sizes, ScalarType::Float));
    }
  }

  // Appends tokens, up to a chunk at a time; returns the logits of the next token.
  std::vector<float> append(std::vector<int64_t> tokens) {
    std::vector<float> logits(vocab_);
    for (size_t first = 0; first < tokens.size(); first += chunk_) {
      const int32_t count = std::min<int64_t>(chunk_, tokens.size() - first);
      int64_t last = count - 1;
      const TensorPtr given[] = {
          from_blob(&tokens[first], {1, count}, ScalarType::Long),
          from_blob(&length_, {1}, ScalarType::Int),
          from_blob(&last, {1}, ScalarType::Long)};
      std::vector<EValue> inputs(std::begin(given), std::end(given));
      inputs.insert(inputs.end(), caches_.begin(), caches_.end());
      inputs.insert(inputs.end(), source_.begin(), source_.end());
      const auto outputs = require(model_.execute("decode", inputs), "decode");
      std::copy_n(outputs[0].toTensor().const_data_ptr<float>(), vocab_, logits.begin());
      length_ += count;
    }
    return logits;
  }

 private:
  static constexpr size_t kFirstCache = 3;  // after tokens, length and offset
  Module& model_;
  const int64_t vocab_, chunk_;
  const std::vector<EValue> source_;
  std::vector<std::vector<float>> memory_;
  std::vector<TensorPtr> caches_;
  int32_t length_ = 0;
};

inline int64_t likeliest(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}
