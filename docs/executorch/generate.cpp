// Continues a prompt of tokens with a decoder-only model's ExecuTorch file, greedily:
//   generate model.pte 32 5 17 3      prints up to 32 tokens after 5 17 3
#include "session.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: generate MODEL.pte STEPS TOKEN...\n");
    return 2;
  }
  Module model(argv[1]);
  const int steps = std::atoi(argv[2]);
  std::vector<int64_t> prompt;
  for (int i = 3; i < argc; ++i) prompt.push_back(std::atoll(argv[i]));
  const std::vector<int64_t> ends = constants(model, "end_tokens");
  Session session(model, static_cast<int64_t>(prompt.size()) + steps);
  int64_t next = likeliest(session.append(prompt));
  for (int i = 0; i < steps && !contains(ends, next); ++i) {
    std::printf("%lld\n", static_cast<long long>(next));
    next = likeliest(session.append({next}));
  }
  return 0;
}
