#include "core/text/separated.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <system_error>

namespace isobar {

std::vector<std::string_view> texts_between(std::string_view text, char separator)
{
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

std::optional<std::uint64_t> count_from_text(std::string_view text)
{
  std::uint64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

std::optional<std::vector<NumberRange>> ranges_from_text(std::string_view text)
{
  std::vector<NumberRange> ranges;
  for (const auto item : texts_between(text, ',')) {
    const std::size_t dash = item.find('-');
    const auto first = count_from_text(item.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : count_from_text(item.substr(dash + 1));
    if (!first || !last || *first > *last || (!ranges.empty() && *first <= ranges.back().last)) return std::nullopt;
    ranges.push_back({*first, *last});
  }
  return ranges;
}

}  // namespace isobar
