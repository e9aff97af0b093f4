#include "core/errors.hpp"

#include <gtest/gtest.h>

namespace isobar::errors_test {
namespace {

TEST(NearestWord, CountsTwoLettersThatChangedPlacesAsOneEdit)
{
  EXPECT_EQ(nearest_word("rloe", {"host", "role"}), "role");
  EXPECT_EQ(nearest_word("hots", {"role", "host"}), "host");
  EXPECT_EQ(nearest_word("ohst", {"role", "host"}), "host");
  EXPECT_EQ(nearest_word("capactiy", {"capacity"}), "capacity");
}

TEST(NearestWord, IsNoneIfMoreThanAThirdOfTheLettersDiffer)
{
  EXPECT_EQ(nearest_word("toss", {"host"}), "");
  EXPECT_EQ(nearest_word("tohs", {"host"}), "");
  EXPECT_EQ(nearest_word("", {"host"}), "");
  EXPECT_EQ(nearest_word("hos", {}), "");
}

}  // namespace
}  // namespace isobar::errors_test
