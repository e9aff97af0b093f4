#pragma once

#include <string>
#include <string_view>

/// What BERT's tokenization asks of Unicode, version 14.0. O(log of a table) for each character.
namespace isobar::exec {

/// The text's code points. A byte that begins no character (core/utf8.hpp) is U+FFFD.
std::u32string code_points_of(std::string_view utf8);
void append_utf8(char32_t code, std::string& text);

/// Characters that tokenization drops: U+0000, U+FFFD, and those of category C: control, format, private use and
/// surrogates, and codes that mean nothing yet; but not tab and line breaks.
bool is_dropped(char32_t code);
/// Tab, line feed, carriage return, and categories Zs, Zl and Zp.
bool is_white_space(char32_t code);
/// Category P, and what is neither letter nor number nor space in ASCII.
bool is_punctuation(char32_t code);
/// Of the blocks of CJK ideographs, as BERT counts them.
bool is_chinese(char32_t code);

/// Appends the character decomposed (NFD), without nonspacing marks (category Mn), in lower case: nothing for such a
/// mark. Marks that remain keep their order: only two marks of music on one note would be sorted by NFD.
void append_folded(char32_t code, std::u32string& text);

}  // namespace isobar::exec
