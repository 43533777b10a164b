// Reads the tensors of a safetensors file: eight bytes that say how long the header is, the header,
// JSON with each tensor's dtype, shape and place, and then the tensors' bytes.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <vector>

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

inline at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> known{
      {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
      {"I32", at::kInt},   {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool}};
  const auto found = known.find(name);
  if (found == known.end()) fail("unknown dtype " + name);
  return found->second;
}

// Returns all tensors by name, in torch's memory.
inline std::map<std::string, at::Tensor> read_weights(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  uint64_t length = 0;
  if (bytes.size() < sizeof length) fail(path + " cannot be read");
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - sizeof length) fail(path + " is cut short");
  const char* data = bytes.data() + sizeof length + length;
  const size_t held = bytes.size() - sizeof length - length;
  const std::string header(bytes.data() + sizeof length, length);
  static const std::regex entry(
      R"re("([^"]+)":\{"dtype":"(\w+)","shape":\[([\d,]*)\],"data_offsets":\[(\d+),(\d+)\]\})re");
  static const std::regex number(R"(\d+)");
  std::map<std::string, at::Tensor> tensors;
  for (std::sregex_iterator at(header.begin(), header.end(), entry), end; at != end; ++at) {
    const std::string shape = (*at)[3];
    std::vector<int64_t> sizes;
    for (std::sregex_iterator size(shape.begin(), shape.end(), number); size != end; ++size)
      sizes.push_back(std::stoll(size->str()));
    const size_t first = std::stoull((*at)[4]), last = std::stoull((*at)[5]);
    at::Tensor tensor = torch::empty(sizes, dtype_of((*at)[2]));
    if (last > held || first > last || last - first != tensor.nbytes())
      fail(path + ": " + (*at)[1].str() + " lies outside of the file");
    std::memcpy(tensor.data_ptr(), data + first, last - first);
    tensors[(*at)[1]] = tensor;
  }
  return tensors;
}
