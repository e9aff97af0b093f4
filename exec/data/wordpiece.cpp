#include "exec/data/wordpiece.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"
#include "core/utf8.hpp"
#include "exec/data/tokenizer_settings.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::exec {

namespace {

bool has_capital(std::string_view piece)
{
  const bool is_special = piece.starts_with('[') && piece.ends_with(']');
  return !is_special &&
         std::any_of(piece.begin(), piece.end(), [](char letter) { return letter >= 'A' && letter <= 'Z'; });
}

/// Removes the last character of non-empty UTF-8.
void remove_last_character(std::string& text)
{
  const auto is_within = [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80; };
  while (is_within(text.back())) text.pop_back();
  text.pop_back();
}

}  // namespace

WordPiece::WordPiece(const std::filesystem::path& vocabulary_file)
{
  const std::string text = read_file(vocabulary_file);
  FaultList faults(vocabulary_file.string());
  constexpr std::size_t longest_piece = 1000;
  constexpr int most_faults = 20;
  int number_of_faults = 0;
  int line = 0;
  bool is_cased = false;
  for (std::string_view rest = text; !rest.empty() && number_of_faults < most_faults;) {
    std::string_view piece = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
    if (piece.ends_with('\r')) piece.remove_suffix(1);
    ++line;
    const auto refuse = [&](const std::string& what) {
      faults.add(line, "", what);
      ++number_of_faults;
    };
    if (line == 1 && piece.starts_with(byte_order_mark)) {
      refuse("begins with a byte order mark; save it in UTF-8 without one");
      piece.remove_prefix(byte_order_mark.size());
    }
    if (piece.empty()) {
      refuse("is empty; write a word piece on each line");
    } else if (piece.size() > longest_piece) {
      refuse(fmt::format("has {} bytes; a piece has at most {}", piece.size(), longest_piece));
    } else if (!is_utf8(piece)) {
      refuse(in_quotes(piece) + " is not UTF-8");
    } else if (const auto known = token_of_piece_.find(std::string(piece)); known != token_of_piece_.end()) {
      refuse(fmt::format("{} is also on line {}; remove one", in_quotes(piece), known->second + 1));
    } else {
      token_of_piece_.emplace(piece, line - 1);
    }
    is_cased = is_cased || has_capital(piece);
  }
  faults.throw_if_any();
  const auto required = [&](const std::string& piece) {
    const auto found = token_of_piece_.find(piece);
    if (found == token_of_piece_.end()) faults.add(line, "", piece + " is missing; BERT's vocabularies have it");
    return found == token_of_piece_.end() ? 0 : found->second;
  };
  padding_ = required("[PAD]");
  unknown_ = required("[UNK]");
  begin_ = required("[CLS]");
  separator_ = required("[SEP]");
  faults.throw_if_any();
  const TokenizerSettings settings = tokenizer_settings_beside(vocabulary_file);
  folding_.lowers_case = settings.lowers_case.value_or(!is_cased);
  folding_.strips_accents = settings.strips_accents.value_or(folding_.lowers_case);
  separates_chinese_ = settings.separates_chinese.value_or(true);
}

void WordPiece::encode_word(std::u32string_view word, std::vector<std::int64_t>& tokens) const
{
  constexpr std::size_t longest_word = 100;
  const std::size_t tokens_before = tokens.size();
  std::size_t begin = word.size() > longest_word ? std::u32string_view::npos : 0;
  while (begin < word.size()) {
    std::string piece = begin == 0 ? "" : "##";
    for (const char32_t code : word.substr(begin)) append_utf8(code, piece);
    std::size_t end = word.size();
    auto found = token_of_piece_.find(piece);
    while (found == token_of_piece_.end() && --end > begin) {
      remove_last_character(piece);
      found = token_of_piece_.find(piece);
    }
    if (found != token_of_piece_.end()) tokens.push_back(found->second);
    begin = found == token_of_piece_.end() ? std::u32string_view::npos : end;
  }
  if (begin != std::u32string_view::npos) return;
  tokens.resize(tokens_before);
  tokens.push_back(unknown_);
}

std::vector<std::int64_t> WordPiece::encode(std::string_view text) const
{
  std::vector<std::int64_t> tokens;
  std::u32string word;
  const auto end_word = [&] {
    if (!word.empty()) encode_word(word, tokens);
    word.clear();
  };
  std::u32string folded;
  for (const char32_t code : code_points_of(text)) {
    if (is_dropped(code)) continue;
    if (is_white_space(code)) {
      end_word();
      continue;
    }
    folded.clear();
    append_folded(code, folding_, folded);
    const bool is_alone = separates_chinese_ && is_chinese(code);
    if (is_alone) end_word();
    for (const char32_t character : folded) {
      if (is_punctuation(character)) {
        end_word();
        encode_word({&character, 1}, tokens);
      } else {
        word += character;
      }
    }
    if (is_alone) end_word();
  }
  end_word();
  return tokens;
}

}  // namespace isobar::exec
