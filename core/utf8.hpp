#pragma once

#include <cstddef>
#include <string_view>

namespace isobar {

/// What some editors put before the text of a file in UTF-8.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// The bytes of the UTF-8 character that `text` begins with, or 0 when it begins with none (RFC 3629, section 4).
std::size_t utf8_length(std::string_view text);
/// Whether `text` is UTF-8 from end to end.
bool is_utf8(std::string_view text);
/// Whether an ASCII character is none to be seen: below a space (tab and line break too), or 0x7F.
bool is_control(char character);

}  // namespace isobar
