#include "results/markdown_table.hpp"

#include <gtest/gtest.h>

namespace isobar::results::markdown_table_test {
namespace {

TEST(MarkdownTable, EscapesWhatMarkdownWouldInterpret)
{
  EXPECT_EQ(markdown_table_of({"set", "mean"}, {{"a_b", "1 | 2"}, {"<c>", "3"}}),
            "| set | mean |\n|---|---:|\n| a\\_b | 1 \\| 2 |\n| &lt;c&gt; | 3 |\n");
}

}  // namespace
}  // namespace isobar::results::markdown_table_test
