#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace isobar::exec {

/// One stage's part of a checkpoint's manifest: schema isobar-checkpoint/1, docs/checkpoints.md.
struct ManifestPart {
  std::uint64_t step = 0;
  std::size_t stages = 1;
  std::size_t stage = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  std::string run = "{}";  ///< a JSON object, in the form of manifest_from_text()
  std::uint64_t size = 0;  ///< of the stage's file, in bytes
  std::uint32_t crc = 0;   ///< CRC-32C of the file
  std::map<std::string, std::uint32_t> tensor_crc;
};

/// A checkpoint has at most so many stages.
inline constexpr std::size_t most_stages = 99'999;

/// "stage-0-of-3.safetensors", and ".json" of its manifest.
std::string stage_file_name(std::size_t stage, std::size_t stages);
std::string manifest_file_name(std::size_t stage, std::size_t stages);

std::string manifest_to_text(const ManifestPart& part);
/// `where` stands for the file in messages. @throws InputError naming each fault's line and key.
ManifestPart manifest_from_text(const std::string& text, const std::string& where);
/// The same from a file of at most 64 MiB.
ManifestPart read_manifest(const std::filesystem::path& file);

}  // namespace isobar::exec
