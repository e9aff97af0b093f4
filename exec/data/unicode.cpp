#include "exec/data/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace isobar::exec {

namespace {

utf8proc_category_t category_of(char32_t code)
{
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

std::u32string code_points_of(std::string_view utf8)
{
  std::u32string codes;
  codes.reserve(utf8.size());
  while (!utf8.empty()) {
    utf8proc_int32_t code = 0;
    const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(utf8.data()),
                                         static_cast<utf8proc_ssize_t>(utf8.size()), &code);
    codes += length > 0 ? static_cast<char32_t>(code) : U'\uFFFD';
    utf8.remove_prefix(length > 0 ? static_cast<std::size_t>(length) : 1);
  }
  return codes;
}

void append_utf8(char32_t code, std::string& text)
{
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  text.append(bytes.begin(), bytes.begin() + length);
}

bool is_dropped(char32_t code)
{
  if (code == '\t' || code == '\n' || code == '\r') return false;
  const auto category = category_of(code);
  return code == 0xFFFD || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CS || category == UTF8PROC_CATEGORY_CO || category == UTF8PROC_CATEGORY_CN;
}

bool is_white_space(char32_t code)
{
  const auto category = category_of(code);
  return code == '\t' || code == '\n' || code == '\r' || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(char32_t code)
{
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
           (code >= '{' && code <= '~');
  }
  const auto category = category_of(code);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool is_chinese(char32_t code)
{
  struct Block {
    char32_t first, last;
  };
  static constexpr std::array<Block, 6> blocks{{{0x3400, 0x4DBF},
                                                {0x4E00, 0x9FFF},
                                                {0xF900, 0xFAFF},
                                                {0x20000, 0x2A6DF},
                                                {0x2A700, 0x2CEAF},
                                                {0x2F800, 0x2FA1F}}};
  return std::ranges::any_of(blocks, [&](const Block& block) { return code >= block.first && code <= block.last; });
}

void append_folded(char32_t code, const Folding& folding, std::u32string& text)
{
  std::array<utf8proc_int32_t, 4> parts{static_cast<utf8proc_int32_t>(code)};  // no character's NFD is longer
  const utf8proc_ssize_t count =
      folding.strips_accents
          ? utf8proc_decompose_char(parts.front(), parts.data(), parts.size(), UTF8PROC_DECOMPOSE, nullptr)
          : 1;
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    const auto part = parts[static_cast<std::size_t>(i)];
    if (folding.strips_accents && utf8proc_category(part) == UTF8PROC_CATEGORY_MN) continue;
    if (!folding.lowers_case) {
      text += static_cast<char32_t>(part);
    } else if (part == 0x130) {
      text += U"i\u0307";  // the only character whose lower case has two
    } else {
      text += static_cast<char32_t>(utf8proc_tolower(part));
    }
  }
}

}  // namespace isobar::exec
