#pragma once

#include <string>
#include <string_view>

/// What BERT's tokenization needs from Unicode, by utf8proc and in its version of Unicode. O(1) per character.
namespace isobar::exec {

/// The text's code points. A byte that begins no character (core/utf8.hpp) becomes U+FFFD.
std::u32string code_points_of(std::string_view utf8);
void append_utf8(char32_t code, std::string& text);

/// Whether tokenization drops the character: U+0000, U+FFFD and category C (control, format, private use, surrogate,
/// unassigned), except tab, line feed and carriage return.
bool is_dropped(char32_t code);
/// Tab, line feed, carriage return, and categories Zs, Zl and Zp.
bool is_white_space(char32_t code);
/// Category P, and every visible ASCII character that is neither a letter nor a digit.
bool is_punctuation(char32_t code);
/// Whether the character is in one of the blocks of CJK ideographs that BERT lists.
bool is_chinese(char32_t code);

/// How a character changes before words are split.
struct Folding {
  bool lowers_case = true;
  bool strips_accents = true;
};

/// Appends the folded character. Without accents, it is the canonical decomposition (NFD) without nonspacing marks
/// (category Mn), nothing for such a mark. Marks that remain keep their order; NFD would sort them only for two musical
/// marks on one note.
void append_folded(char32_t code, const Folding& folding, std::u32string& text);

}  // namespace isobar::exec
