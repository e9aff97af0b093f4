#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

/// Takes names of files and tensors apart, from their beginning.
namespace isobar::exec {

/// Removes `part` from the beginning of `text`; false if it does not begin with it.
inline bool take(std::string_view part, std::string_view& text)
{
  if (!text.starts_with(part)) return false;
  text.remove_prefix(part.size());
  return true;
}

/// Removes the number that `text` begins with and returns it; none when it does not begin with a digit.
inline std::optional<std::uint64_t> take_number(std::string_view& text)
{
  std::uint64_t number = 0;
  const auto [rest, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return number;
}

}  // namespace isobar::exec
