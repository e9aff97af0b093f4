// isobar_safetensors_filter IN OUT: copies every tensor of a file into another. For
// tests/exec/files/safetensors_peer_test.py.

#include "exec/files/safetensors.hpp"

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

int main(int argc, char** argv)
{
  using namespace isobar::exec;
  if (argc != 3) return 2;
  try {
    const SafetensorsFile file(argv[1]);
    std::vector<StoredTensor> tensors;
    for (const auto& name : file.names()) tensors.push_back(file.read(name));
    std::vector<TensorView> views;
    for (const auto& tensor : tensors) views.push_back({tensor.facts, tensor.data});
    write_safetensors(argv[2], views, file.metadata());
  } catch (const std::exception& fault) {
    std::fprintf(stderr, "%s\n", fault.what());
    return 1;
  }
}
