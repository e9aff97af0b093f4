#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace isobar::exec {

/// Which part of a checkpoint a file is: that of a stage, or of one of the replicas and shards that divide
/// it, which it numbers as shards.
struct PartName {
  std::size_t stage = 0;
  std::size_t stages = 1;
  std::size_t shard = 0;
  std::size_t shards = 1;

  auto operator<=>(const PartName&) const = default;
};

/// One part of a checkpoint's manifest (schema isobar-checkpoint/1, docs/checkpoints.md).
struct ManifestPart {
  std::uint64_t step = 0;
  PartName name = {};
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  std::string run = "{}";  ///< JSON object, formatted as manifest_from_text() does
  std::uint64_t size = 0;  ///< size of the stage's file, in bytes
  std::uint32_t crc = 0;   ///< CRC-32C of the stage's file
  std::map<std::string, std::uint32_t> tensor_crc;
};

/// Largest number of stages of a checkpoint, and of shards of a stage.
inline constexpr std::size_t most_stages = 99'999;

/// File names of a part: "stage-0-of-3.safetensors", and "stage-0-of-3.json" for its part of the manifest; of a divided
/// stage "stage-0-of-3-shard-1-of-2.safetensors".
std::string tensor_file_name(const PartName& part);
std::string manifest_file_name(const PartName& part);

/// The part as JSON, and back. `where` names the file in messages.
std::string manifest_to_text(const ManifestPart& part);
/// @throws InputError naming each fault's line and key.
ManifestPart manifest_from_text(const std::string& text, const std::string& where);
/// Reads a part from a file of at most 64 MiB.
ManifestPart read_manifest(const std::filesystem::path& file);

}  // namespace isobar::exec
