#pragma once

#include <cstddef>
#include <string_view>

namespace isobar {

/// The bytes that some editors put before the text of a UTF-8 file.
inline constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// Length in bytes of the UTF-8 character that `text` begins with; 0 when it begins with none (RFC 3629, section 4).
std::size_t utf8_length(std::string_view text);
/// Whether `text` is UTF-8 from end to end.
bool is_utf8(std::string_view text);
/// The number of characters of UTF-8 text.
std::size_t utf8_characters(std::string_view text);
/// Whether a character is an ASCII control character: below a space (including tab and line break), or 0x7F.
bool is_control(char character);

}  // namespace isobar
