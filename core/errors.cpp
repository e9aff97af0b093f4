#include "core/errors.hpp"

#include "core/utf8.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace isobar {

namespace {

std::string joined(const std::vector<std::string>& lines)
{
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

/// Damerau's distance, without edits between letters that changed places: the least number of insertions, deletions,
/// substitutions and exchanges of neighbouring letters.
std::size_t edit_distance(const std::string& a, const std::string& b)
{
  std::vector<std::size_t> before_last;  // the distances of the first i - 2 letters of a
  std::vector<std::size_t> last(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> row(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
      const bool is_exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_exchanged) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, std::move(row));
  }
  return last.back();
}

}  // namespace

InputError::InputError(const std::vector<std::string>& faults) : std::runtime_error(joined(faults)) {}

InputError::InputError(const std::string& where, const std::string& what)
    : std::runtime_error(on_one_line(where) + ": " + what)
{
}

std::string without_place(const std::string& place, const InputError& fault)
{
  const std::string text = fault.what();
  return text.starts_with(place + ": ") ? text.substr(place.size() + 2) : text;
}

EnvironmentError::EnvironmentError(const std::string& where, const std::string& what)
    : std::runtime_error(on_one_line(where) + ": " + what)
{
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& candidates)
{
  std::string nearest;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const auto distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string shown(std::string_view text, std::size_t longest)
{
  std::string line;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at));
    const std::size_t end = at + std::max<std::size_t>(length, 1);
    if (end > longest) return line + "…";
    if (length == 0 || is_control(text[at])) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    } else {
      line += text.substr(at, length);
    }
    at = end;
  }
  return line;
}

std::string on_one_line(std::string_view text)
{
  return shown(text, text.size());
}

std::string printable(std::string_view lines)
{
  std::string text;
  while (true) {
    const std::size_t end = lines.find('\n');
    text += on_one_line(lines.substr(0, end));
    if (end == std::string_view::npos) return text;
    text += '\n';
    lines.remove_prefix(end + 1);
  }
}

std::string in_quotes(std::string_view text)
{
  return '"' + shown(text) + '"';
}

}  // namespace isobar
