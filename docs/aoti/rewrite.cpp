// Rewrites a text with a T5 over bytes, greedily, from a bundle that `kvcast export --runtime aoti` wrote:
//   rewrite dates/aoti LAYERS HEADS HEAD_DIM "3 March 2021"
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "weights.h"

using torch::inductor::AOTIModelPackageLoader;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kStart = 0, kEnd = 1, kFirstByte = 3, kCapacity = 64;

// Loads a program, which reads the weights from where they lie: programs share them.
void load(AOTIModelPackageLoader& program, const std::string& name,
          const std::map<std::string, at::Tensor>& weights) {
  std::unordered_map<std::string, at::Tensor> own;
  for (const std::string& constant : program.get_constant_fqns()) {
    auto found = weights.find(constant);
    // A program's own constants, which have no names, are under its name.
    if (found == weights.end()) found = weights.find(name + "/" + constant);
    if (found == weights.end()) fail("weights.safetensors lacks " + constant);
    own[constant] = found->second;
  }
  program.load_constants(own, /*use_inactive=*/false, /*check_full_update=*/true,
                         /*user_managed=*/true);
}

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: rewrite FOLDER LAYERS HEADS HEAD_DIM TEXT\n");
    return 2;
  }
  const std::string folder = argv[1], text = argv[5];
  const int64_t layers = std::atoll(argv[2]), heads = std::atoll(argv[3]);
  const int64_t head_dim = std::atoll(argv[4]);
  c10::InferenceMode without_gradients;
  const auto weights = read_weights(folder + "/weights.safetensors");
  const std::string package = folder + "/model.pt2";
  AOTIModelPackageLoader encode(package, "encode"), decode(package, "decode");
  load(encode, "encode", weights);
  load(decode, "decode", weights);

  std::vector<int64_t> source;
  for (const unsigned char byte : text) source.push_back(byte + kFirstByte);
  source.push_back(kEnd);
  const at::Tensor source_lengths = torch::tensor({static_cast<int32_t>(source.size())}, at::kInt);
  const Tensors crossed = encode.run({torch::tensor(source, at::kLong).unsqueeze(0), source_lengths});

  // The caches are this program's memory. Every call writes one slot of them in place.
  Tensors caches;
  for (int64_t i = 0; i < 2 * layers; ++i)
    caches.push_back(torch::zeros({1, heads, kCapacity, head_dim}));
  int64_t token = kStart;
  for (int32_t length = 0; length < kCapacity; ++length) {
    // Of the first argument only the size counts: how many slots to read.
    Tensors given{torch::empty({length + 1}, at::kChar), torch::tensor({token}, at::kLong).unsqueeze(0),
                  torch::tensor({length}, at::kInt), torch::zeros({1}, at::kLong)};
    given.insert(given.end(), caches.begin(), caches.end());
    given.insert(given.end(), crossed.begin(), crossed.end());
    given.push_back(source_lengths);
    token = decode.run(given)[0].flatten().argmax().item<int64_t>();
    if (token == kEnd) break;
    std::putchar(static_cast<int>(token - kFirstByte));
  }
  std::putchar('\n');
  return 0;
}
