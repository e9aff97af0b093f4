#include "exec/data/wordpiece.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace isobar::exec::wordpiece_test {
namespace {

using testing::ElementsAre;
using testing_support::TemporaryFolder;

const std::string special = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n";  // tokens 0 to 3

class WordPieces : public testing::Test {
 protected:
  /// The text's pieces with this vocabulary.
  std::vector<std::string> pieces_of(const std::vector<std::string>& vocabulary, const std::string& text)
  {
    std::string lines = special;
    for (const auto& piece : vocabulary) lines += piece + "\n";
    std::vector<std::string> found;
    for (const auto token : WordPiece(folder_.write("vocab.txt", lines)).encode(text)) {
      found.push_back(token == 1 ? "[UNK]" : vocabulary.at(static_cast<std::size_t>(token) - 4));
    }
    return found;
  }
  /// The same with a tokenizer_config.json beside the vocabulary.
  std::vector<std::string> pieces_with(const std::string& settings, const std::vector<std::string>& vocabulary,
                                       const std::string& text)
  {
    folder_.write("tokenizer_config.json", settings);
    return pieces_of(vocabulary, text);
  }
  std::string faults_of(const std::string& lines) { return faults_in(folder_.write("vocab.txt", lines)); }
  std::string faults_of_settings(const std::string& settings)
  {
    folder_.write("vocab.txt", special);
    return faults_in(folder_.write("tokenizer_config.json", settings));
  }

 private:
  /// Faults of the vocabulary and its settings, in which FILE stands for `file`.
  std::string faults_in(const std::filesystem::path& file)
  {
    try {
      const WordPiece pieces(folder_.path() / "vocab.txt");
      return "none";
    } catch (const InputError& fault) {
      std::string what = fault.what();
      for (auto at = what.find(file.string()); at != std::string::npos; at = what.find(file.string())) {
        what.replace(at, file.string().size(), "FILE");
      }
      return what;
    }
  }

 protected:
  TemporaryFolder folder_;
};

TEST_F(WordPieces, AreTheLongestFromTheStart)
{
  // The example of BERT's tokenization.py.
  EXPECT_THAT(pieces_of({"un", "##aff", "##able", "##a"}, "unaffable"), ElementsAre("un", "##aff", "##able"));
  EXPECT_THAT(pieces_of({"un", "##a", "unaff", "##able"}, "unaffable"), ElementsAre("unaff", "##able"));
}

TEST_F(WordPieces, MakeAWordUnknownWhenAPartIs)
{
  EXPECT_THAT(pieces_of({"un", "##aff", "able"}, "unaffable able"), ElementsAre("[UNK]", "able"));
}

TEST_F(WordPieces, OfWordsOverAHundredCharactersAreUnknown)
{
  const std::vector<std::string> vocabulary = {"a", "##a"};
  EXPECT_EQ(pieces_of(vocabulary, std::string(100, 'a')).size(), 100U);
  EXPECT_THAT(pieces_of(vocabulary, std::string(101, 'a')), ElementsAre("[UNK]"));
}

TEST_F(WordPieces, OfUncasedVocabulariesIgnoreCapitalsAndAccents)
{
  EXPECT_THAT(pieces_of({"cafe", "istanbul", "strasse"}, "CAFÉ café cafe\u0301 İstanbul straße"),
              ElementsAre("cafe", "cafe", "cafe", "istanbul", "[UNK]"));
}

TEST_F(WordPieces, OfCasedVocabulariesKeepThem)
{
  EXPECT_THAT(pieces_of({"Café", "café"}, "Café café CAFÉ cafe"), ElementsAre("Café", "café", "[UNK]", "[UNK]"));
}

TEST_F(WordPieces, AreSplitAtPunctuation)
{
  EXPECT_THAT(pieces_of({"don", "'", "t", "!", "—", "$", "¿", "_"}, "don't! —$ ¿t_"),
              ElementsAre("don", "'", "t", "!", "—", "$", "¿", "t", "_"));
  // A Greek question mark decomposes into a semicolon.
  EXPECT_THAT(pieces_of({"a", "b", ";"}, "a\u037Eb"), ElementsAre("a", ";", "b"));
}

TEST_F(WordPieces, SeparateChineseCharacters)
{
  EXPECT_THAT(pieces_of({"推", "特", "a", "b"}, "a推特b"), ElementsAre("a", "推", "特", "b"));
}

TEST_F(WordPieces, OfKoreanAreLetters)
{
  EXPECT_THAT(pieces_of({"\u1112\u1161\u11ab", "\u1100\u1173"}, "한 그"),
              ElementsAre("\u1112\u1161\u11ab", "\u1100\u1173"));
}

TEST_F(WordPieces, IgnoreControlCharacters)
{
  std::string text("a\0b\u200B a\x07\uFFFDb", 13);
  text += "\u00A0c\u2028c\n\tc \u00ADc\uE000";
  EXPECT_THAT(pieces_of({"ab", "c"}, text), ElementsAre("ab", "ab", "c", "c", "c", "c"));
  EXPECT_THAT(pieces_of({"ab"},
                        "a\xff\xc3"
                        "b \xed\xa0\x80"),
              ElementsAre("ab"));
  EXPECT_THAT(pieces_of({"ab"}, " \t\u200B "), ElementsAre());
}

TEST_F(WordPieces, AreNeverSpecialInAText)
{
  EXPECT_THAT(pieces_of({"[", "]", "cls"}, "[CLS]"), ElementsAre("[", "cls", "]"));
}

TEST_F(WordPieces, ComeFromAFileWithAPieceOnEachLine)
{
  const WordPiece pieces(folder_.write("vocab.txt", "a\r\n[SEP]\r\n[CLS]\r\n[UNK]\r\n[PAD]\r\n##a"));
  EXPECT_EQ(pieces.vocabulary(), 6U);
  EXPECT_EQ(pieces.separator(), 1);
  EXPECT_EQ(pieces.begin(), 2);
  EXPECT_EQ(pieces.padding(), 4);
  EXPECT_THAT(pieces.encode("aa b"), ElementsAre(0, 5, 3));
}

TEST_F(WordPieces, KeepAccentsOrCapitalsAsTheTokenizersSettingsSay)
{
  const std::vector<std::string> uncased = {"ich", "mochte", "möchte", "Ich", "Möchte", "Mochte"};
  EXPECT_THAT(pieces_with(R"({"do_lower_case": true, "strip_accents": false})", uncased, "Ich möchte MÖCHTE"),
              ElementsAre("ich", "möchte", "möchte"));
  EXPECT_THAT(pieces_with(R"({"do_lower_case": true, "strip_accents": null})", uncased, "Ich Möchte"),
              ElementsAre("ich", "mochte"));
  EXPECT_THAT(pieces_with(R"({"do_lower_case": false, "strip_accents": true})", uncased, "Ich Möchte möchte"),
              ElementsAre("Ich", "Mochte", "mochte"));
  EXPECT_THAT(pieces_with(R"({"do_lower_case": false})", uncased, "Ich Möchte"), ElementsAre("Ich", "Möchte"));
  EXPECT_THAT(pieces_with(R"({"do_lower_case": false})", {"ich"}, "ich Ich"), ElementsAre("ich", "[UNK]"));
  // The only letter with a lower case of two characters.
  EXPECT_THAT(pieces_with(R"({"do_lower_case": true, "strip_accents": false})", {"i\u0307"}, "\u0130"),
              ElementsAre("i\u0307"));
}

TEST_F(WordPieces, AreCasedByTheVocabularyWhereSettingsSayNothing)
{
  EXPECT_THAT(pieces_with(R"({"model_max_length": 512})", {"Café", "café"}, "Café CAFÉ"), ElementsAre("Café", "[UNK]"));
  EXPECT_THAT(pieces_with(R"({"strip_accents": false})", {"café"}, "CAFÉ"), ElementsAre("café"));
}

TEST_F(WordPieces, KeepChineseCharactersTogetherIfTheTokenizersSettingsSaySo)
{
  EXPECT_THAT(pieces_with(R"({"tokenize_chinese_chars": false})", {"推特", "推", "特"}, "推特"), ElementsAre("推特"));
  EXPECT_THAT(pieces_with(R"({"tokenize_chinese_chars": true})", {"推特", "推", "特"}, "推特"),
              ElementsAre("推", "特"));
}

TEST_F(WordPieces, AreThoseOfTheTokenizersThatSplitAsBertsDoes)
{
  EXPECT_EQ(faults_of_settings(R"({"tokenizer_class": "ElectraTokenizerFast", "unk_token": "[UNK]", "never_split": null,
                                   "do_basic_tokenize": true, "pad_token": {"content": "[PAD]", "lstrip": false},
                                   "added_tokens_decoder": {"0": {"content": "[PAD]", "special": true}}})"),
            "none");
  EXPECT_EQ(faults_of_settings(R"({"tokenizer_class": "BertJapaneseTokenizer"})"),
            "FILE:1: tokenizer_class: \"BertJapaneseTokenizer\" splits text in another way than BERT's; supported are "
            "BertTokenizer, DistilBertTokenizer, ElectraTokenizer, MobileBertTokenizer, SqueezeBertTokenizer");
  EXPECT_EQ(faults_of_settings("{\"do_basic_tokenize\": false,\n\"never_split\": [\"<br>\"]}"),
            "FILE:1: do_basic_tokenize: false is not supported; words end at white space and punctuation\n"
            "FILE:2: never_split: is not supported; remove it to split all words");
  EXPECT_EQ(faults_of_settings(R"({"unk_token": "<unk>"})"),
            "FILE:1: unk_token: \"<unk>\" is not supported; the piece is [UNK]");
  EXPECT_EQ(faults_of_settings(R"({"added_tokens_decoder": {"9": {"content": "<url>", "special": false}}})"),
            "FILE:1: added_tokens_decoder.9.content: \"<url>\" is an added token, which is not supported; put it into "
            "the vocabulary");
  EXPECT_EQ(faults_of_settings(R"({"strip_accents": "no"})"),
            "FILE:1: strip_accents: \"no\" is not a boolean; write true or false without quotes");
  EXPECT_EQ(faults_of_settings("[]"), "FILE:1: the file is a list; write \"key: value\" pairs");
}

TEST_F(WordPieces, OfDamagedFilesAreRefusedByLine)
{
  EXPECT_EQ(faults_of(special + "a\n\nb\na\n\xff\n"),
            "FILE:6: is empty; write a word piece on each line\n"
            "FILE:8: \"a\" is also on line 5; remove one\n"
            "FILE:9: \"\\xff\" is not UTF-8");
  EXPECT_EQ(faults_of("[PAD]\n[CLS]\n"),
            "FILE:2: [UNK] is missing; BERT's vocabularies have it\n"
            "FILE:2: [SEP] is missing; BERT's vocabularies have it");
  EXPECT_EQ(faults_of("\xEF\xBB\xBF" + special), "FILE:1: begins with a byte order mark; save it in UTF-8 without one");
  const auto faults = faults_of(std::string(1000, '\n'));
  EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 19);
  EXPECT_EQ(faults_of(special + std::string(1001, 'a')), "FILE:5: has 1001 bytes; a piece has at most 1000");
}

}  // namespace
}  // namespace isobar::exec::wordpiece_test
