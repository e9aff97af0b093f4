#include "exec/files/checkpoint_manifest.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <optional>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;

constexpr auto schema = "isobar-checkpoint/1";

std::string hex_of(std::uint32_t crc)
{
  return fmt::format("{:08x}", crc);
}

std::string stem_of(const PartName& part)
{
  const std::string stage = fmt::format("stage-{}-of-{}", part.stage, part.stages);
  return part.shards == 1 ? stage : fmt::format("{}-shard-{}-of-{}", stage, part.shard, part.shards);
}

std::optional<std::uint32_t> crc_from(const DocumentNode& node)
{
  std::uint32_t crc = 0;
  const auto* end = node.scalar.data() + node.scalar.size();
  const auto status = std::from_chars(node.scalar.data(), end, crc, 16).ec;
  if (!node.is_text || status != std::errc{} || hex_of(crc) != node.scalar) return std::nullopt;
  return crc;
}

std::uint32_t required_crc(MappingReader& reader, const std::string& key)
{
  const DocumentNode* node = reader.required(key);
  const auto crc = node ? crc_from(*node) : 0;
  if (!crc) reader.add_fault(key, fmt::format("{} is not a CRC-32C of 8 hexadecimal digits", in_quotes(node->scalar)));
  return crc.value_or(0);
}

}  // namespace

std::string tensor_file_name(const PartName& part)
{
  return stem_of(part) + ".safetensors";
}

std::string manifest_file_name(const PartName& part)
{
  return stem_of(part) + ".json";
}

std::string manifest_to_text(const ManifestPart& part)
{
  const auto run = Json::parse(part.run);
  ensure(run.is_object(), "the description of a run is a JSON object");
  Json tensors = Json::object();
  for (const auto& [name, crc] : part.tensor_crc) tensors[name] = hex_of(crc);
  Json manifest = {{"schema", schema}, {"step", part.step}, {"stages", part.name.stages}, {"stage", part.name.stage}};
  if (part.name.shards > 1) {
    manifest["shards"] = part.name.shards;
    manifest["shard"] = part.name.shard;
  }
  manifest["first_layer"] = part.first_layer;
  manifest["last_layer"] = part.last_layer;
  manifest["run"] = run;
  manifest["file"] = tensor_file_name(part.name);
  manifest["size_bytes"] = part.size;
  manifest["crc32c"] = hex_of(part.crc);
  manifest["tensors"] = std::move(tensors);
  return manifest.dump(2) + '\n';
}

ManifestPart manifest_from_text(const std::string& text, const std::string& where)
{
  const auto document = parse_json(text, where);
  FaultList faults(where);
  MappingReader reader(document, "", faults);
  ManifestPart part;
  reader.required_choice("schema", {schema});
  part.step = reader.required_count("step");
  part.name.stages = reader.required_count("stages", 1, most_stages);
  part.name.stage = reader.required_count("stage", 0, most_stages - 1);
  part.name.shards = reader.optional_count("shards", 2, most_stages).value_or(1);
  part.name.shard = part.name.shards == 1 ? 0 : reader.required_count("shard", 0, most_stages - 1);
  part.first_layer = reader.required_count("first_layer");
  part.last_layer = reader.required_count("last_layer", part.first_layer);
  part.size = reader.required_count("size_bytes");
  part.crc = required_crc(reader, "crc32c");
  const DocumentNode* run = reader.required("run");
  if (run) MappingReader(*run, "run.", faults);
  const auto file = reader.required_text("file");
  const DocumentNode* tensors = reader.required("tensors");
  reader.refuse_unknown();
  faults.throw_if_any();
  if (file != tensor_file_name(part.name)) {
    reader.add_fault("file", fmt::format("{} is not {}", in_quotes(file), tensor_file_name(part.name)));
  }
  MappingReader listed(*tensors, "tensors.", faults);
  for (const auto& [name, node] : tensors->members) {
    const auto crc = crc_from(node);
    if (!crc)
      listed.add_fault(name, fmt::format("{} is not a CRC-32C of 8 hexadecimal digits", in_quotes(node.scalar)));
    faults.throw_if_any();
    part.tensor_crc.emplace(name, *crc);
  }
  faults.throw_if_any();
  part.run = Json::parse(text).at("run").dump();
  return part;
}

ManifestPart read_manifest(const std::filesystem::path& file)
{
  constexpr std::uint64_t most = std::uint64_t{1} << 26;
  const std::string where = shown_path(file);
  std::error_code ignored;
  const auto size = std::filesystem::file_size(file, ignored);
  if (!ignored && size > most)
    throw InputError(where, fmt::format("has {} bytes; a manifest has at most 64 MiB", size));
  return manifest_from_text(read_file(file), where);
}

}  // namespace isobar::exec
