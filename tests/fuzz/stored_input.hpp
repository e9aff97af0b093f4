#pragma once

#include "exec/files/checkpoint_manifest.hpp"
#include "exec/files/safetensors.hpp"
#include "exec/files/weight_files.hpp"
#include "tests/fuzz/inputs.hpp"
#include "tests/support/temporary_folder.hpp"

#include <filesystem>
#include <span>
#include <string>
#include <vector>

/// Fuzz targets for weights and checkpoints.
namespace isobar::fuzz {

inline void manifest(const std::string& text)
{
  try {
    const auto written = exec::manifest_to_text(exec::manifest_from_text(text, "input"));
    ensure(exec::manifest_to_text(exec::manifest_from_text(written, "input")) == written,
           "a manifest survives writing and reading");
  } catch (const InputError& fault) {
    check_message(fault);
  }
}

/// Reads every tensor, writes it into another file, and reads it from there.
inline void check(const exec::SafetensorsFile& file, const std::filesystem::path& copy_path)
{
  std::uint64_t bytes = 0;
  std::vector<exec::StoredTensor> tensors;
  for (const auto& name : file.names()) tensors.push_back(file.read(name));
  std::vector<exec::TensorView> views;
  for (const auto& tensor : tensors) {
    views.push_back({tensor.facts, tensor.data});
    bytes += tensor.data.size();
  }
  ensure(bytes <= file.size(), "tensors lie within the file");
  exec::write_safetensors(copy_path, views, file.metadata());
  const exec::SafetensorsFile copy(copy_path);
  ensure(copy.names() == file.names() && copy.metadata() == file.metadata(), "a copy has the same names and metadata");
  for (const auto& tensor : tensors) {
    ensure(copy.read(tensor.facts.name).data == tensor.data, "a copy has the same elements");
  }
}

/// A temporary folder of the process, with a shard `one.safetensors` that has a tensor `a`.
inline const std::filesystem::path& folder_with_shard()
{
  static const testing_support::TemporaryFolder folder;
  static const bool is_made = [] {
    const std::vector<std::byte> elements(4);
    const std::vector<exec::TensorView> tensors = {{{"a", exec::ElementType::F32, {1}}, elements}};
    exec::write_safetensors(folder.path() / "one.safetensors", tensors, {});
    return true;
  }();
  ensure(is_made, "the shard exists");
  return folder.path();
}

/// A text that begins like JSON is an index next to that shard; anything else is a safetensors file.
inline void safetensors(const std::string& content)
{
  const auto& folder = folder_with_shard();
  const bool is_index = content.starts_with('{');
  const auto path = folder / (is_index ? "input.json" : "input.safetensors");
  std::ofstream(path, std::ios::binary) << content;
  try {
    if (is_index) {
      const exec::Weights weights(path);
      for (const auto& name : weights.names()) weights.read(name);
    } else {
      check(exec::SafetensorsFile(path), folder / "copy.safetensors");
    }
  } catch (const InputError& fault) {
    check_message(fault, (is_index ? folder : path).string());  // for an index the fault may be in the shard
  }
}

}  // namespace isobar::fuzz
