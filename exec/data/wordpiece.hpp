#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar::exec {

/// What a vocabulary knows of letters: an uncased one no capitals and no accents.
enum class Casing { Uncased, Cased };

/// BERT's pieces of words: a vocabulary file (vocab.txt) with a piece on each line, whose number from 0 is its token.
/// Pieces that go on inside a word begin with "##". A vocabulary is cased when a piece has a capital letter A to Z;
/// [PAD] and its like do not count.
///
/// Text is cleaned of control characters, Chinese characters stand alone, capitals and accents go (uncased), words are
/// split at white space and punctuation, and each word becomes the longest pieces from its begin on, or [UNK] where
/// there are none or it has more than 100 characters. What looks like a special piece in a text is text.
/// Sources: google-research/bert tokenization.py; of its variants the one of Hugging Face's tokenizers, which drops all
/// of category C and lowers letter by letter (a final sigma too); Devlin et al. 2018 (arXiv 1810.04805), section 3.
class WordPiece {
 public:
  /// @throws InputError "file:line: …" for a piece that is empty, no UTF-8 or there twice, and when [PAD], [UNK], [CLS]
  /// or [SEP] is missing.
  explicit WordPiece(const std::filesystem::path& vocabulary_file);

  /// The text's tokens, without [CLS] and [SEP]. Bytes that are no UTF-8 are dropped.
  std::vector<std::int64_t> encode(std::string_view text) const;

  Casing casing() const { return casing_; }
  std::uint64_t vocabulary() const { return token_of_piece_.size(); }
  std::int64_t padding() const { return padding_; }      ///< [PAD]
  std::int64_t begin() const { return begin_; }          ///< [CLS]
  std::int64_t separator() const { return separator_; }  ///< [SEP]

 private:
  void encode_word(std::u32string_view word, std::vector<std::int64_t>& tokens) const;

  Casing casing_ = Casing::Uncased;
  std::unordered_map<std::string, std::int64_t> token_of_piece_;
  std::int64_t padding_ = 0, unknown_ = 0, begin_ = 0, separator_ = 0;
};

}  // namespace isobar::exec
