#include "core/text/csv_table.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::csv_table_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(CsvTable, ReordersColumnsOfATableWrittenByHandAndKeepsItsComments)
{
  FaultList faults("t.csv");
  const auto table = CsvTable::by_hand("# measured\r\n\r\n b , a\r\n1, x y \n", {"a"}, {"b", "c"}, faults);
  faults.throw_if_any();
  EXPECT_THAT(table.columns(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(table.comments(), ElementsAre("measured"));
  ASSERT_EQ(table.rows().size(), 1U);
  EXPECT_EQ(table.rows()[0].line, 4);
  EXPECT_THAT(table.rows()[0].cells, ElementsAre("x y", "1", ""));
  EXPECT_EQ(table.last_line(), 4);
}

TEST(CsvTable, ReadsBackTheCellsOfATableWrittenByAProgram)
{
  const std::vector<std::string> cells = {" a,b ", "say \"x\"", "", "#"};
  FaultList faults("t.csv");
  const auto table = CsvTable::by_program("p,q,r,s\n" + csv_line(cells) + csv_line(cells), "p,q,r,s", faults);
  faults.throw_if_any();
  ASSERT_EQ(table.rows().size(), 2U);
  EXPECT_EQ(table.rows()[0].cells, cells);
  EXPECT_EQ(table.rows()[1].line, 3);
}

TEST(CsvTable, LeavesOutRowsWithFaults)
{
  FaultList faults("t.csv");
  EXPECT_THAT(CsvTable::by_program("p,q\n1\n\"1,2\n\"1\"2,3\n", "p,q", faults).rows(), IsEmpty());
  const std::string quotes = "row: a quote is not closed, or text follows a closing quote; write a,\"b, c\",d";
  EXPECT_THAT([&] { faults.throw_if_any(); },
              testing::ThrowsMessage<InputError>("t.csv:2: row: has 1 cell; the header has 2\nt.csv:3: " + quotes +
                                                 "\nt.csv:4: " + quotes));
}

TEST(CsvTable, ReadsRowsOfAnyLengthWithoutAHeader)
{
  FaultList faults("t.csv");
  const auto table = CsvTable::without_header("a, b ,\r\n\n\"c,d\"\n", 10, faults);
  faults.throw_if_any();
  ASSERT_EQ(table.rows().size(), 3U);
  EXPECT_THAT(table.rows()[0].cells, ElementsAre("a", "b", ""));
  EXPECT_THAT(table.rows()[1].cells, ElementsAre(""));
  EXPECT_THAT(table.rows()[2].cells, ElementsAre("c,d"));
  EXPECT_EQ(table.rows()[2].line, 3);
  EXPECT_EQ(table.last_line(), 3);
}

TEST(CsvTable, SkipsAByteOrderMark)
{
  FaultList faults("t.csv");
  const auto table = CsvTable::by_hand(
      "\xEF\xBB\xBF"
      "a,b\n1,2\n",
      {"a", "b"}, {}, faults);
  faults.throw_if_any();
  EXPECT_THAT(table.rows().at(0).cells, ElementsAre("1", "2"));
}

TEST(CsvTable, StopsAtItsLimitOfCells)
{
  FaultList faults("t.csv");
  EXPECT_EQ(CsvTable::without_header("a,b\nc,d\n", 3, faults).rows().size(), 1U);
  EXPECT_THAT([&] { faults.throw_if_any(); },
              testing::ThrowsMessage<InputError>("t.csv:2: row: the table has more than 3 cells; write fewer"));
}

TEST(CsvLine, QuotesWhatNeedsIt)
{
  EXPECT_EQ(csv_line({"", "a,b", "say \"x\"", "z"}), ",\"a,b\",\"say \"\"x\"\"\",z\n");
}

}  // namespace
}  // namespace isobar::csv_table_test
