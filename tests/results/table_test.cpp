#include "results/table.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::table_test {
namespace {

TEST(TableOf, AlignsByCharactersNotBytes)
{
  EXPECT_EQ(table_of({"name", "x"}, {{"ä", "10"}, {"bc", "–"}}),
            "name   x\n"
            "----  --\n"
            "ä     10\n"
            "bc     –\n");
}

const std::string thirty(30, '1');

TEST(TableOf, LeavesOutTheLeastImportantColumnsOfATableThatIsTooWide)
{
  EXPECT_EQ(table_of({"name", "a", "b"}, {{"x", thirty, "2"}}, 1, {2, 1}, TableWidth::Terminal),
            table_of({"name", "a", "b"}, {{"x", thirty, "2"}}));
  EXPECT_EQ(table_of({"name", "a", "b", "c"}, {{"x", thirty, thirty, thirty}}, 1, {2, 1}, TableWidth::Terminal),
            table_of({"name", "a", "c"}, {{"x", thirty, thirty}}) + "not shown without --wide: b\n");
  EXPECT_EQ(table_of({"name", "a", "b", "c"}, {{"x", thirty, thirty, thirty}}, 1, {2, 1}, TableWidth::Any),
            table_of({"name", "a", "b", "c"}, {{"x", thirty, thirty, thirty}}));
}

TEST(TableOf, ShortensLeftAlignedEntriesWhereNoColumnCanBeLeftOut)
{
  const std::string name = "ä" + std::string(98, 'm') + "z";
  EXPECT_EQ(
      table_of({"name", "x"}, {{name, "10"}, {"b", "1"}}, 1, {}, TableWidth::Terminal),
      table_of({"name", "x"}, {{"ä" + std::string(37, 'm') + "…" + std::string(36, 'm') + "z", "10"}, {"b", "1"}}));
}

TEST(TableOf, CountsTheLeftAlignedColumnsThatRemain)
{
  EXPECT_EQ(table_of({"name", "site", "a", "b"}, {{"x", thirty, thirty, thirty}}, 2, {1}, TableWidth::Terminal),
            table_of({"name", "a", "b"}, {{"x", thirty, thirty}}) + "not shown without --wide: site\n");
}

}  // namespace
}  // namespace isobar::results::table_test
