#pragma once

#include "exec/files/safetensors.hpp"
#include "exec/files/tensor_source.hpp"

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace isobar::exec {

/// The weights of a model in one file, or in the shards that a `model.safetensors.index.json` names.
class Weights final : public TensorSource {
 public:
  /// `path`: a safetensors file, an index, or a folder with a `model.safetensors` or, if there is none, an index.
  /// @throws InputError when there is neither, when the index names a shard outside its folder, or when a shard lacks a
  /// tensor that the index puts there.
  explicit Weights(const std::filesystem::path& path);

  std::string where() const override { return where_; }
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;

  /// All that is read: configuration, index and shards, whether they are there or not.
  std::vector<std::string> files() const;
  /// Where the model's configuration is, if it has one: `config.json` beside the weights.
  std::filesystem::path config_file() const;
  /// Recognises a model again, whatever its files are: of names, types, shapes and the first 64 KiB of each tensor.
  std::string fingerprint() const;

 private:
  void open_shards(const std::filesystem::path& index);

  std::string where_;
  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::filesystem::path> paths_;
  std::map<std::string, std::size_t> file_of_;
};

}  // namespace isobar::exec
