#include "core/base/file_kind.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar {

namespace {

/// The noun, and the hint by which a message helps to find the right file.
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

std::string_view without_blanks_before(std::string_view text)
{
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t\r\n")));
  return text;
}

/// The text after `key` (with its quotes) and a colon; "" if they do not occur.
std::string_view value_of(std::string_view text, std::string_view key)
{
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  text = without_blanks_before(text.substr(at + key.size()));
  return text.starts_with(':') ? without_blanks_before(text.substr(1)) : std::string_view();
}

std::optional<FileKind> kind_of_json(std::string_view head)
{
  const auto schema = value_of(head, "\"schema\"");
  if (schema.starts_with("\"isobar-plan/")) return FileKind::Plan;
  if (schema.starts_with("\"isobar-result/")) return FileKind::Result;
  return value_of(head, "\"model\"").empty() ? std::nullopt : std::optional(FileKind::Workload);
}

}  // namespace

std::optional<FileKind> file_kind_of(std::string_view text)
{
  constexpr std::size_t enough = 8192;  // for the comments at the top of a file
  const std::string_view head = text.substr(0, enough);
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  if (head[first] == '<') {
    return head.find("<platform") != std::string_view::npos ? std::optional(FileKind::Platform) : std::nullopt;
  }
  if (head[first] == '{') return kind_of_json(head);
  const bool has_model = head.starts_with("model:") || head.find("\nmodel:") != std::string_view::npos;
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
