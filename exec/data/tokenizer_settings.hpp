#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace isobar::exec {

/// What tokenizer_config.json says about the word pieces of a text; absent where it says nothing.
struct TokenizerSettings {
  std::optional<bool> lowers_case;        ///< do_lower_case
  std::optional<bool> strips_accents;     ///< strip_accents
  std::optional<bool> separates_chinese;  ///< tokenize_chinese_chars: Chinese characters are words of their own
};

/// Reads the tokenizer_config.json that Hugging Face's transformers writes beside a vocabulary. Absent file: no
/// settings.
/// @throws InputError for a malformed file, and naming each key that asks for other tokens than those of WordPiece:
/// another tokenizer_class than BERT's, do_basic_tokenize: false, never_split, other names of [PAD], [UNK], [CLS] and
/// [SEP], and added tokens that are not special.
TokenizerSettings tokenizer_settings_beside(const std::filesystem::path& vocabulary_file);

/// The settings that are present, such as "do_lower_case=false strip_accents=false"; "" for none.
std::string text_of(const TokenizerSettings& settings);

}  // namespace isobar::exec
