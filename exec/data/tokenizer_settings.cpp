#include "exec/data/tokenizer_settings.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace isobar::exec {

namespace {

/// Tokenizers of transformers that split words as BERT's does.
constexpr std::array<std::string_view, 5> classes = {"BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer",
                                                     "MobileBertTokenizer", "SqueezeBertTokenizer"};

constexpr std::array<std::pair<const char*, const char*>, 4> special_pieces = {
    {{"pad_token", "[PAD]"}, {"unk_token", "[UNK]"}, {"cls_token", "[CLS]"}, {"sep_token", "[SEP]"}}};

bool is_null(const DocumentNode* node)
{
  return node == nullptr || node->kind == DocumentNode::Kind::Null;
}

/// A token is a text, or a mapping with its content.
std::string content_of(const DocumentNode& token)
{
  const auto found = std::find_if(token.members.begin(), token.members.end(),
                                  [](const auto& member) { return member.key == "content"; });
  return found == token.members.end() ? token.scalar : found->value.scalar;
}

class Reader {
 public:
  Reader(const std::string& text, const std::string& name)
      : faults_(name), document_(parse_json(text, name)), reader_(document_, "", faults_)
  {
  }

  TokenizerSettings read()
  {
    const TokenizerSettings settings = {.lowers_case = boolean("do_lower_case"),
                                        .strips_accents = boolean("strip_accents"),
                                        .separates_chinese = boolean("tokenize_chinese_chars")};
    check_class();
    if (!boolean("do_basic_tokenize").value_or(true)) {
      reader_.add_fault("do_basic_tokenize", "false is not supported; words end at white space and punctuation");
    }
    if (const auto* words = reader_.optional("never_split"); !is_null(words) && !words->items.empty()) {
      reader_.add_fault("never_split", "is not supported; remove it to split all words");
    }
    for (const auto& [key, piece] : special_pieces) check_special_token(key, piece);
    check_added_tokens();
    faults_.throw_if_any();
    return settings;
  }

 private:
  std::optional<bool> boolean(const std::string& key)
  {
    return is_null(reader_.optional(key)) ? std::nullopt : reader_.optional_boolean(key);
  }

  void check_class()
  {
    const DocumentNode* node = reader_.optional("tokenizer_class");
    if (is_null(node)) return;
    std::string_view name = node->scalar;
    constexpr std::string_view fast = "Fast";
    if (name.ends_with(fast)) name.remove_suffix(fast.size());
    if (std::find(classes.begin(), classes.end(), name) != classes.end()) return;
    reader_.add_fault("tokenizer_class", fmt::format("{} splits text in another way than BERT's; supported are {}",
                                                     in_quotes(node->scalar), fmt::join(classes, ", ")));
  }

  void check_special_token(const char* key, const char* piece)
  {
    const DocumentNode* token = reader_.optional(key);
    if (is_null(token) || content_of(*token) == piece) return;
    reader_.add_fault(key, fmt::format("{} is not supported; the piece is {}", in_quotes(content_of(*token)), piece));
  }

  void check_added_tokens()
  {
    const DocumentNode* tokens = reader_.optional("added_tokens_decoder");
    if (is_null(tokens)) return;
    for (const auto& [number, token] : tokens->members) {
      MappingReader entry(token, fmt::format("added_tokens_decoder.{}.", shown(number)), faults_);
      if (entry.optional_boolean("special").value_or(false)) continue;
      entry.add_fault("content", fmt::format("{} is an added token, which is not supported; put it into the vocabulary",
                                             in_quotes(content_of(token))));
    }
  }

  FaultList faults_;
  DocumentNode document_;
  MappingReader reader_;
};

}  // namespace

TokenizerSettings tokenizer_settings_beside(const std::filesystem::path& vocabulary_file)
{
  const auto file = vocabulary_file.parent_path() / "tokenizer_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  return Reader(read_file(file), file.string()).read();
}

std::string text_of(const TokenizerSettings& settings)
{
  std::string text;
  const auto add = [&text](const char* key, const std::optional<bool>& value) {
    if (value) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, *value);
  };
  add("do_lower_case", settings.lowers_case);
  add("strip_accents", settings.strips_accents);
  add("tokenize_chinese_chars", settings.separates_chinese);
  return text;
}

}  // namespace isobar::exec
