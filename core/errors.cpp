#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace isobar {

namespace {

std::string joined(const std::vector<std::string>& lines)
{
  std::string text;
  for (const auto& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

std::size_t edit_distance(const std::string& a, const std::string& b)
{
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

}  // namespace

InputError::InputError(const std::vector<std::string>& faults) : std::runtime_error(joined(faults)) {}

void ensure(bool condition, const char* what)
{
  if (!condition) throw std::logic_error(what);
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
  std::size_t end = std::min(text.size(), longest);
  // Cuts no UTF-8 character in two.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  for (const char character : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += character;
    }
  }
  return line + (end < text.size() ? "…" : "");
}

std::string in_quotes(std::string_view text)
{
  return '"' + shown(text) + '"';
}

}  // namespace isobar
