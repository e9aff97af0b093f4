#include "cli/platform_files.hpp"

#include "core/base/standard_streams.hpp"
#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>

namespace isobar::cli {

sim::Platform load_platform(const std::string& file, const std::string& devices_file,
                            const std::vector<std::string>& left_out)
{
  return sim::Platform::load(
      file, devices_file.empty() ? std::nullopt : std::optional<std::filesystem::path>(devices_file), left_out);
}

void print_notes(const sim::Platform& platform)
{
  for (const auto& note : platform.notes()) say(note);
}

std::string platform_files_json(const std::string& file, const std::string& devices_file)
{
  const sim::Platform platform = load_platform(file, devices_file);
  print_notes(platform);
  const nlohmann::json answer = {{"hash", platform.hash()}, {"files", platform.files()}};
  return json_line(answer);
}

PlatformFiles platform_files_from(const std::string& json)
{
  const auto answer = nlohmann::json::parse(json);
  return {answer.at("hash"), answer.at("files")};
}

}  // namespace isobar::cli
