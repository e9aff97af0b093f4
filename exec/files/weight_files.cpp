#include "exec/files/weight_files.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "exec/files/durable_files.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto single_file = "model.safetensors";
constexpr auto index_file = "model.safetensors.index.json";

/// Shards must be next to their index: a name with a path could make us read arbitrary files.
bool is_plain_name(const std::string& name)
{
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

Weights::Weights(const std::filesystem::path& path)
{
  std::filesystem::path file = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    file = path / single_file;
    if (!std::filesystem::exists(file, ignored)) file = path / index_file;
    if (!std::filesystem::exists(file, ignored)) {
      throw InputError(shown_path(path),
                       fmt::format("has neither {} nor {}; name the folder of a Hugging Face model in safetensors",
                                   single_file, index_file));
    }
  }
  where_ = shown_path(file);
  folder_ = folder_of_file(file);
  paths_.push_back(file);
  if (file.extension() == ".json") {
    open_shards(file);
    return;
  }
  files_.emplace_back(file);
  for (auto& name : files_.front().names()) file_of_.emplace(std::move(name), 0);
}

void Weights::open_shards(const std::filesystem::path& index)
{
  const auto document = parse_json(read_file(index), where_);
  FaultList faults(where_);
  MappingReader reader(document, "", faults);
  const DocumentNode* map = reader.required("weight_map");
  reader.optional("metadata");
  faults.throw_if_any();
  MappingReader weight_map(*map, "weight_map.", faults);
  faults.throw_if_any();
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, node] : map->members) {
    if (node.kind != DocumentNode::Kind::Scalar || !node.is_text || !is_plain_name(node.scalar)) {
      weight_map.add_fault(tensor,
                           fmt::format("{} is not the name of a file next to the index", in_quotes(node.scalar)));
      faults.throw_if_any();
    }
    const auto [place, is_new] = opened.emplace(node.scalar, files_.size());
    if (is_new) {
      paths_.push_back(folder_ / node.scalar);
      files_.emplace_back(paths_.back());
    }
    if (!files_[place->second].find(tensor)) {
      weight_map.add_fault(tensor, fmt::format("{} has no such tensor", files_[place->second].where()));
      faults.throw_if_any();
    }
    file_of_.emplace(tensor, place->second);
  }
}

std::vector<std::string> Weights::names() const
{
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const TensorFacts* Weights::find(const std::string& name) const
{
  const auto found = file_of_.find(name);
  return found == file_of_.end() ? nullptr : files_[found->second].find(name);
}

void Weights::read(const std::string& name, std::span<std::byte> into) const
{
  facts(name);
  files_[file_of_.at(name)].read(name, into);
}

std::vector<std::string> Weights::files() const
{
  std::vector<std::string> files = {config_file().string()};
  for (const auto& path : paths_) files.push_back(path.string());
  return files;
}

std::filesystem::path Weights::config_file() const
{
  return folder_ / "config.json";
}

std::string Weights::fingerprint() const
{
  constexpr std::uint64_t most_bytes = std::uint64_t{1} << 16;
  std::vector<std::byte> begin;
  ContentHash hash;
  for (const auto& [name, file] : file_of_) {
    const TensorFacts& tensor = facts(name);
    hash.add(fmt::format("{} {} {} {}\n", name.size(), name, name_of(tensor.type), fmt::join(tensor.shape, ",")));
    begin.resize(std::min(tensor.bytes(), most_bytes));
    files_[file].read_begin(name, begin);
    hash.add({reinterpret_cast<const char*>(begin.data()), begin.size()});
  }
  return hash.text();
}

}  // namespace isobar::exec
