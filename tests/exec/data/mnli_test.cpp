#include "exec/data/mnli.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

namespace isobar::exec::mnli_test {
namespace {

using testing_support::TemporaryFolder;

class Mnli : public testing::Test {
 protected:
  MnliFile read(const std::string& content) { return MnliFile(folder_.write("pairs.tsv", content)); }
  std::string faults_of(const std::string& content)
  {
    const auto file = folder_.write("pairs.tsv", content);
    try {
      const MnliFile pairs(file);
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

TEST_F(Mnli, FindsItsColumnsByTheirNames)
{
  const auto pairs = read(
      "index\tgold_label\tsentence2\tgenre\tsentence1\n"
      "0\tneutral\tB.\tfiction\tA.\n"
      "1\tentailment\tD.\tfiction\tC.\n"
      "2\tcontradiction\tF.\tfiction\tE.\n");
  ASSERT_EQ(pairs.size(), 3U);
  EXPECT_EQ(pairs.pair(0).premise, "A.");
  EXPECT_EQ(pairs.pair(0).hypothesis, "B.");
  EXPECT_EQ(pairs.pair(0).label, 1);
  EXPECT_EQ(pairs.pair(1).label, 0);
  EXPECT_EQ(pairs.pair(2).label, 2);
}

const std::string header = "sentence1\tsentence2\tgold_label\n";

TEST_F(Mnli, TakesQuotesAsTheyAre)
{
  const auto pairs = read(header + "\"A quote\tthat \"\"never ends\tneutral\n\"\t\"\tentailment\n");
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs.pair(0).premise, "\"A quote");
  EXPECT_EQ(pairs.pair(0).hypothesis, "that \"\"never ends");
  EXPECT_EQ(pairs.pair(1).hypothesis, "\"");
}

TEST_F(Mnli, LeavesOutPairsWithoutALabel)
{
  const auto pairs = read(header + "A\tB\t-\nC\tD\tneutral\nE\tF\t-\n");
  ASSERT_EQ(pairs.size(), 1U);
  EXPECT_EQ(pairs.pair(0).premise, "C");
  EXPECT_EQ(pairs.unlabelled(), 2U);
}

TEST_F(Mnli, ReadsLinesThatEndAsOnWindowsAndALastOneThatDoesNotEnd)
{
  const auto pairs = read("sentence1\tsentence2\tgold_label\r\nA\tB\tneutral\r\nC\t\tentailment");
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_EQ(pairs.pair(1).hypothesis, "");
}

TEST_F(Mnli, KeepsItsPairsWhenItMoves)
{
  auto pairs = read(header + "A\tB\tneutral\n");  // short enough for the string's own buffer
  const MnliFile moved = std::move(pairs);
  EXPECT_EQ(moved.pair(0).premise, "A");
}

TEST_F(Mnli, NamesTheLineOfEachFault)
{
  EXPECT_EQ(faults_of(header + "A\tB\tmaybe\nC\tD\tneutral\nE\tF\n\xff\tG\tneutral\nA\tB\tC\tneutral\n\n"),
            "FILE:2: gold_label: \"maybe\"; write entailment, neutral, contradiction or -\n"
            "FILE:4: has 2 columns; the first line has 3\n"
            "FILE:5: has bytes that are not UTF-8\n"
            "FILE:6: has 4 columns; the first line has 3\n"
            "FILE:7: has 1 columns; the first line has 3");
}

TEST_F(Mnli, NamesMissingColumns)
{
  EXPECT_EQ(faults_of("sentence1\tlabel1\nA\tneutral\n"),
            "FILE:1: has no column sentence2; MNLI's first line names it\n"
            "FILE:1: has no column gold_label; MNLI's first line names it");
  EXPECT_NE(faults_of(""), "none");
}

TEST_F(Mnli, RefusesAByteOrderMark)
{
  EXPECT_EQ(faults_of("\xEF\xBB\xBF" + header + "A\tB\tneutral\n"),
            "FILE:1: begins with a byte order mark; save it in UTF-8 without one");
}

TEST_F(Mnli, NamesTheColumnThatIsListedTwice)
{
  EXPECT_EQ(faults_of("sentence1\tsentence2\tgold_label\tsentence1\nA\tB\tneutral\tC\n"),
            "FILE:1: names column sentence1 twice; name each once");
  EXPECT_EQ(faults_of("genre\tgenre\t" + header + "x\ty\tA\tB\tneutral\n"), "none");  // an unused column
}

TEST_F(Mnli, IsRefusedWithoutAPair)
{
  EXPECT_EQ(faults_of(header), "FILE: has no pair with a label");
  EXPECT_EQ(faults_of(header + "A\tB\t-\n"), "FILE: has no pair with a label");
}

TEST_F(Mnli, ReportsAtMostTwentyFaults)
{
  std::string content = header;
  for (int i = 0; i < 1000; ++i) content += "A\n";
  const auto faults = faults_of(content);
  EXPECT_EQ(std::count(faults.begin(), faults.end(), '\n'), 19);
}

}  // namespace
}  // namespace isobar::exec::mnli_test
