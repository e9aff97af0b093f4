#include "core/file_kind.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <regex>
#include <utility>

namespace isobar {

namespace {

/// The noun, and how a message helps to find the right file.
std::pair<std::string_view, std::string_view> words_of(FileKind kind)
{
  switch (kind) {
    case FileKind::Platform:
      return {"platform", "SimGrid's XML, such as platforms/sky64.xml"};
    case FileKind::Workload:
      return {"workload", "YAML, such as workloads/bert160.yaml"};
    case FileKind::Plan:
      return {"plan", "isobar plan -o writes it"};
    case FileKind::Result:
      return {"result", "isobar simulate -o writes it"};
  }
  throw std::logic_error("no such kind of file");
}

std::optional<FileKind> kind_of_json(const std::string& head)
{
  static const std::regex schema(R"re("schema"\s*:\s*"isobar-(plan|result)/)re");
  static const std::regex model(R"re("model"\s*:)re");
  std::smatch found;
  if (std::regex_search(head, found, schema)) return found[1] == "plan" ? FileKind::Plan : FileKind::Result;
  return std::regex_search(head, model) ? std::optional(FileKind::Workload) : std::nullopt;
}

}  // namespace

std::optional<FileKind> file_kind_of(std::string_view text)
{
  constexpr std::size_t enough = 8192;  // for the comments at the top of a file
  const std::string head(text.substr(0, enough));
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return std::nullopt;
  if (head[first] == '<') {
    return head.find("<platform") != std::string::npos ? std::optional(FileKind::Platform) : std::nullopt;
  }
  if (head[first] == '{') return kind_of_json(head);
  const bool has_model = head.starts_with("model:") || head.find("\nmodel:") != std::string::npos;
  return has_model ? std::optional(FileKind::Workload) : std::nullopt;
}

void require_file_kind(FileKind wanted, std::string_view text, const std::string& name)
{
  const auto kind = file_kind_of(text);
  if (!kind || *kind == wanted) return;
  const auto [noun, hint] = words_of(wanted);
  throw InputError(name, fmt::format("is a {}; name a {} ({})", words_of(*kind).first, noun, hint));
}

}  // namespace isobar
