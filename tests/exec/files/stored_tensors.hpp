#pragma once

#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

/// Tensors for tests of stored files.
namespace isobar::exec {

inline StoredTensor tensor_of(const std::string& name, std::vector<std::uint64_t> shape,
                              const std::vector<float>& values)
{
  StoredTensor tensor{{name, ElementType::F32, std::move(shape)}, std::vector<std::byte>(values.size() * 4)};
  if (!values.empty()) std::memcpy(tensor.data.data(), values.data(), tensor.data.size());
  return tensor;
}

inline StoredTensor tensor_of_bytes(const TensorFacts& facts, std::uint8_t first)
{
  StoredTensor tensor{facts, std::vector<std::byte>(facts.bytes())};
  for (auto& byte : tensor.data) byte = static_cast<std::byte>(first++);
  return tensor;
}

inline std::vector<TensorView> views_of(const std::vector<StoredTensor>& tensors)
{
  std::vector<TensorView> views;
  for (const auto& tensor : tensors) views.push_back({tensor.facts, tensor.data});
  return views;
}

inline std::vector<float> floats_of(const StoredTensor& tensor)
{
  std::vector<float> values(tensor.data.size() / 4);
  if (!values.empty()) std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace isobar::exec
