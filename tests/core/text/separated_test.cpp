#include "core/text/separated.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::separated_test {
namespace {

using testing::ElementsAre;

TEST(TextsBetween, AreOneMoreThanTheSeparators)
{
  EXPECT_THAT(texts_between("", ','), ElementsAre(""));
  EXPECT_THAT(texts_between("a", ','), ElementsAre("a"));
  EXPECT_THAT(texts_between(",a,,b,", ','), ElementsAre("", "a", "", "b", ""));
}

TEST(CountFromText, TakesDigitsAlone)
{
  EXPECT_EQ(count_from_text("0042"), 42);
  EXPECT_EQ(count_from_text("18446744073709551615"), 18446744073709551615U);
  for (const auto* text : {"", "-1", "+1", " 1", "1 ", "1.0", "0x1", "18446744073709551616"}) {
    EXPECT_EQ(count_from_text(text), std::nullopt) << text;
  }
}

TEST(RangesFromText, TakesNumbersAndRangesInOrder)
{
  const auto ranges = ranges_from_text("3-10,12,13-13");
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 3U);
  EXPECT_EQ(ranges->front().last, 10U);
  EXPECT_EQ((*ranges)[1].first, 12U);
  EXPECT_EQ(ranges->back().last, 13U);
  for (const auto* text : {"", ",", "1,", "3-1", "1,1", "1-4,4", "4,2", "1-", "-1", "a", "1-2-3", "1 ,2"}) {
    EXPECT_FALSE(ranges_from_text(text)) << text;
  }
}

}  // namespace
}  // namespace isobar::separated_test
