#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar::exec {

/// What BERT makes of capitals: uncased models know no capitals and no accents.
enum class Casing { Uncased, Cased };

/// BERT's pieces of words: a vocabulary file with a piece on each line, whose number from 0 is its token. Pieces that
/// go on inside a word begin with "##".
///
/// Text is cleaned of control characters, spaces are set around Chinese characters, capitals and accents go (uncased),
/// words are split at white space and punctuation, and each word becomes the longest pieces from its begin on, or
/// [UNK] where there are none or it has more than 100 characters. Unicode's tables: exec/unicode_tables.cpp.
/// Source: google-research/bert tokenization.py; Devlin et al. 2018 (arXiv 1810.04805), section 4.1.
class WordPiece {
 public:
  /// @throws InputError "file:line: …" for a piece that is empty, no UTF-8 or there twice, and when [PAD], [UNK], [CLS]
  /// or [SEP] is missing.
  WordPiece(const std::filesystem::path& vocabulary_file, Casing casing);

  /// The text's tokens, without [CLS] and [SEP]. Bytes that are no UTF-8 count as one U+FFFD each, which cleaning
  /// drops.
  std::vector<std::int64_t> encode(std::string_view text) const;

  std::uint64_t vocabulary() const { return token_of_piece_.size(); }
  std::int64_t padding() const { return padding_; }
  std::int64_t begin() const { return begin_; }          ///< [CLS]
  std::int64_t separator() const { return separator_; }  ///< [SEP]

 private:
  std::int64_t required_token(const std::string& file, const std::string& piece) const;
  void encode_word(std::u32string_view word, std::vector<std::int64_t>& tokens) const;

  Casing casing_;
  std::unordered_map<std::string, std::int64_t> token_of_piece_;
  std::int64_t padding_ = 0, unknown_ = 0, begin_ = 0, separator_ = 0;
};

}  // namespace isobar::exec
