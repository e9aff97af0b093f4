#include "exec/data/wordpiece.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::exec {
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
  std::string faults_of(const std::string& lines)
  {
    const auto file = folder_.write("vocab.txt", lines);
    try {
      const WordPiece pieces(file);
      return "none";
    } catch (const InputError& fault) {
      std::string what = fault.what();
      for (auto at = what.find(file.string()); at != std::string::npos; at = what.find(file.string())) {
        what.replace(at, file.string().size(), "FILE");
      }
      return what;
    }
  }

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
  EXPECT_THAT(pieces_of({"ab", "c"}, std::string("a\0b\u200B a\x07\uFFFDb", 13) + "\u00A0c\u2028c\n\tc \u00ADc\uE000"),
              ElementsAre("ab", "ab", "c", "c", "c", "c"));
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
  EXPECT_EQ(pieces.casing(), Casing::Uncased);
  EXPECT_THAT(pieces.encode("aa b"), ElementsAre(0, 5, 3));
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
}  // namespace isobar::exec
