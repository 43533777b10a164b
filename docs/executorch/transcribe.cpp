// Transcribes log-mel features to tokens with a Whisper's ExecuTorch file, greedily and without
// timestamps:
//   transcribe model.pte features.f32 [features.f32...]
//
// Features are little-endian floats [mel_bins, mel_frames], one file for every 30 seconds. Prints a
// line of tokens for each file.
#include <cmath>

#include "session.h"

namespace {

std::vector<float> features_in(const char* path, size_t count) {
  std::vector<float> features(count);
  std::FILE* file = std::fopen(path, "rb");
  const bool whole = file != nullptr &&
                     std::fread(features.data(), sizeof(float), count, file) == count &&
                     std::fgetc(file) == EOF;
  if (!whole) {
    std::fprintf(stderr, "%s: not a file of %zu floats\n", path, count);
    std::exit(1);
  }
  std::fclose(file);
  return features;
}

void forbid(std::vector<float>& logits, const std::vector<int64_t>& tokens) {
  for (const int64_t token : tokens) logits[token] = -INFINITY;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: transcribe MODEL.pte FEATURES...\n");
    return 2;
  }
  Module model(argv[1]);
  const int32_t bins = constants(model, "mel_bins")[0], frames = constants(model, "mel_frames")[0];
  const int64_t capacity = constants(model, "capacities")[0];
  // For another language, replace start_tokens[1] by its token in `language_tokens`.
  const std::vector<int64_t> start = constants(model, "start_tokens");
  const std::vector<int64_t> ends = constants(model, "end_tokens");
  const std::vector<int64_t> suppressed = constants(model, "suppressed_tokens");
  const std::vector<int64_t> blank = constants(model, "blank_tokens");
  for (int i = 2; i < argc; ++i) {
    std::vector<float> features = features_in(argv[i], static_cast<size_t>(bins) * frames);
    const TensorPtr given = from_blob(features.data(), {1, bins, frames}, ScalarType::Float);
    // Cross keys and values, which stay valid until the next call of `encode`.
    Session session(model, capacity, require(model.execute("encode", given), "encode"));
    std::vector<float> logits = session.append(start);
    forbid(logits, blank);
    for (int64_t step = 0; step < capacity / 2; ++step) {
      forbid(logits, suppressed);
      const int64_t next = likeliest(logits);
      if (contains(ends, next)) break;
      std::printf("%lld ", static_cast<long long>(next));
      logits = session.append({next});
    }
    std::printf("\n");
  }
  return 0;
}
