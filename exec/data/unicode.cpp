#include "exec/data/unicode.hpp"

#include "core/utf8.hpp"
#include "exec/data/unicode_tables.hpp"

#include <algorithm>

namespace isobar::exec {

namespace {

/// The last entry whose `key` is at most `code`, or null.
template <typename Entry>
const Entry* entry_at(std::span<const Entry> table, char32_t Entry::*key, char32_t code)
{
  const auto after = std::ranges::upper_bound(table, code, {}, key);
  return after == table.begin() ? nullptr : &*std::prev(after);
}

bool is_in(std::span<const CodeRange> table, char32_t code)
{
  const auto* range = entry_at(table, &CodeRange::first, code);
  return range != nullptr && code <= range->last;
}

/// A syllable of Hangul is made of two or three letters by arithmetic: The Unicode Standard, section 3.12.
constexpr char32_t first_syllable = 0xAC00, last_syllable = 0xD7A3;
constexpr char32_t vowels = 21, ends = 28;

void append_syllable(char32_t code, std::u32string& text)
{
  const char32_t index = code - first_syllable;
  text.push_back(0x1100 + index / (vowels * ends));
  text.push_back(0x1161 + index % (vowels * ends) / ends);
  if (index % ends != 0) text.push_back(0x11A7 + index % ends);
}

}  // namespace

std::u32string code_points_of(std::string_view utf8)
{
  std::u32string codes;
  codes.reserve(utf8.size());
  while (!utf8.empty()) {
    const auto byte = [&](std::size_t index) { return static_cast<unsigned char>(utf8[index]); };
    const std::size_t length = utf8_length(utf8);
    char32_t code = 0xFFFD;
    if (length == 1) code = byte(0);
    if (length > 1) {
      code = byte(0) & (0xFFU >> (length + 1));
      for (std::size_t i = 1; i < length; ++i) code = code << 6U | (byte(i) & 0x3FU);
    }
    codes += code;
    utf8.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return codes;
}

void append_utf8(char32_t code, std::string& text)
{
  const auto tail = [&](unsigned shift) { text += static_cast<char>(0x80U | (code >> shift & 0x3FU)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0U | code >> 6U);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0U | code >> 12U);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0U | code >> 18U);
    tail(12);
    tail(6);
    tail(0);
  }
}

bool is_dropped(char32_t code)
{
  if (code == '\t' || code == '\n' || code == '\r') return false;
  return code == 0xFFFD || is_in(other_codes, code);
}

bool is_white_space(char32_t code)
{
  return code == '\t' || code == '\n' || code == '\r' || is_in(space_codes, code);
}

bool is_punctuation(char32_t code)
{
  if (code >= 0x80) return is_in(punctuation_codes, code);
  return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') ||
         (code >= '{' && code <= '~');
}

bool is_chinese(char32_t code)
{
  static constexpr std::array<CodeRange, 6> blocks{{{0x3400, 0x4DBF},
                                                    {0x4E00, 0x9FFF},
                                                    {0xF900, 0xFAFF},
                                                    {0x20000, 0x2A6DF},
                                                    {0x2A700, 0x2CEAF},
                                                    {0x2F800, 0x2FA1F}}};
  return is_in(blocks, code);
}

void append_folded(char32_t code, std::u32string& text)
{
  if (code < 0x80) {
    text += code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code;
  } else if (code >= first_syllable && code <= last_syllable) {
    append_syllable(code, text);
  } else if (const auto* run = entry_at(folded_runs, &FoldedRun::first, code);
             run != nullptr && code <= run->last && (code - run->first) % run->stride == 0) {
    text += code + static_cast<char32_t>(run->difference);
  } else if (const auto* single = entry_at(folded_codes, &FoldedCode::code, code);
             single != nullptr && single->code == code) {
    text += single->folded;
  } else if (const auto* several = entry_at(folded_texts, &FoldedText::code, code);
             several != nullptr && several->code == code) {
    for (const char32_t part : several->folded) {
      if (part != 0) text += part;
    }
  } else if (!is_in(nonspacing_marks, code)) {
    text += code;
  }
}

}  // namespace isobar::exec
