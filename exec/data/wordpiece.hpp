#pragma once

#include "exec/data/unicode.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace isobar::exec {

/// BERT's tokenization into word pieces. The vocabulary file (vocab.txt) has one piece per line; a piece's token is its
/// line number, from 0. Pieces that continue a word begin with "##".
///
/// Control characters are dropped. By the settings beside the vocabulary (tokenizer_settings.hpp), Chinese characters
/// become words of their own, letters are lowered and accents stripped. Where they say nothing, Chinese characters
/// do, letters are lowered unless a piece other than [PAD] and the like has a capital letter A to Z, and accents are
/// stripped where letters are lowered. Words end at white space and punctuation. Each word is split greedily into the
/// longest pieces from its start; it becomes [UNK] when that fails or it has over 100 characters. Special pieces in a
/// text are plain text. Sources: google-research/bert tokenization.py, in the variant of Hugging Face's tokenizers,
/// which lowers letter by letter (a final sigma too), but unassigned code points are dropped; Devlin et al. 2018 (arXiv
/// 1810.04805), section 3.
class WordPiece {
 public:
  /// @throws InputError "file:line: …" for a piece that is empty, not UTF-8 or listed twice, and when [PAD], [UNK],
  /// [CLS] or [SEP] is missing; and as tokenizer_settings_beside does.
  explicit WordPiece(const std::filesystem::path& vocabulary_file);

  /// The text's tokens, without [CLS] and [SEP]. Bytes that are not UTF-8 are dropped.
  std::vector<std::int64_t> encode(std::string_view text) const;

  std::uint64_t vocabulary() const { return token_of_piece_.size(); }
  std::int64_t padding() const { return padding_; }      ///< [PAD]
  std::int64_t begin() const { return begin_; }          ///< [CLS]
  std::int64_t separator() const { return separator_; }  ///< [SEP]

 private:
  void encode_word(std::u32string_view word, std::vector<std::int64_t>& tokens) const;

  Folding folding_;
  bool separates_chinese_ = true;
  std::unordered_map<std::string, std::int64_t> token_of_piece_;
  std::int64_t padding_ = 0, unknown_ = 0, begin_ = 0, separator_ = 0;
};

}  // namespace isobar::exec
