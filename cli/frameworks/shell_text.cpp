#include "cli/frameworks/shell_text.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::cli {

namespace {

std::string quoted(const std::string& word)
{
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+.,:/@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::string shell_array(const std::string& name, const std::vector<Argument>& arguments,
                        const std::vector<std::string>& heading)
{
  std::string text;
  for (const auto& line : heading) text += fmt::format("# {}\n", line);
  text += name + "=(\n";
  for (const auto& [option, values] : arguments) {
    text += "  " + option;
    for (const auto& value : values) text += " " + quoted(value);
    text += "\n";
  }
  return text + ")\n";
}

std::vector<std::string> shell_words(std::string_view text, const std::string& place)
{
  std::vector<std::string> words;
  bool is_in_word = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      is_in_word = false;
      continue;
    }
    if (c == '#' && !is_in_word) {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '\\' && i + 1 < text.size() && text[i + 1] == '\n') {  // continues the line
      ++i;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == '\'' || c == '"') {
      const std::size_t end = text.find(c, i + 1);
      if (end == std::string_view::npos) throw InputError(place, fmt::format("a {} without an end; write another", c));
      words.back() += text.substr(i + 1, end - i - 1);
      i = end;
    } else if (c == '\\' && i + 1 < text.size()) {
      words.back() += text[++i];
    } else {
      words.back() += c;
    }
  }
  return words;
}

}  // namespace isobar::cli
