#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace isobar {

/// The parts of a text between separators; of an empty text an empty one. They refer to the text.
std::vector<std::string_view> texts_between(std::string_view text, char separator);

/// A text of digits as a number; none if it has anything else, or the number is too large.
std::optional<std::uint64_t> count_from_text(std::string_view text);

/// The numbers first to last.
struct NumberRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};
/// A text of numbers and ranges in order, such as "3-10,12"; none if it is no such text.
std::optional<std::vector<NumberRange>> ranges_from_text(std::string_view text);

}  // namespace isobar
