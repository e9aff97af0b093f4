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

/// A model's weights: one file, or the shards that a `model.safetensors.index.json` names.
class Weights final : public TensorSource {
 public:
  /// `path`: a safetensors file, an index, or a folder with a `model.safetensors` or else an index.
  /// @throws InputError when the folder has neither, when the index names a shard outside its folder, or when a shard
  /// lacks a tensor that the index assigns to it.
  explicit Weights(const std::filesystem::path& path);

  std::string where() const override { return where_; }
  std::vector<std::string> names() const override;
  const TensorFacts* find(const std::string& name) const override;
  void read(const std::string& name, std::span<std::byte> into) const override;
  using TensorSource::read;

  /// All files of the model: configuration, index and shards. The configuration may not exist.
  std::vector<std::string> files() const;
  /// The path of `config.json` next to the weights, which need not exist.
  std::filesystem::path config_file() const;
  /// Hash that recognises a model, however it is split into files: of names, types, shapes and the first 64 KiB of each
  /// tensor.
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
