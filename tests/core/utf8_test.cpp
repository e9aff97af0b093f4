#include "core/utf8.hpp"

#include "core/errors.hpp"

#include <gtest/gtest.h>

namespace isobar::utf8_test {
namespace {

TEST(Utf8, MeasuresTheFirstCharacter)
{
  EXPECT_EQ(utf8_length("a\xC3"), 1u);
  EXPECT_EQ(utf8_length("ü"), 2u);
  EXPECT_EQ(utf8_length("→x"), 3u);
  EXPECT_EQ(utf8_length("😀"), 4u);
  EXPECT_EQ(utf8_length(""), 0u);
  for (const char* text : {"\x80", "\xC3", "\xC0\xAF", "\xE2\x86", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(utf8_length(text), 0u) << shown(text);
  }
}

TEST(Utf8, IsReadToItsEnd)
{
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("Zürich → 東京 😀"));
  EXPECT_FALSE(is_utf8("Z\xFCrich"));
  EXPECT_FALSE(is_utf8("cut off: \xE2\x86"));
}

TEST(Utf8, CountsCharacters)
{
  EXPECT_EQ(utf8_characters(""), 0u);
  EXPECT_EQ(utf8_characters("Zürich → 東京 😀"), 13u);
}

TEST(Shown, IsUtf8OnOneLine)
{
  EXPECT_EQ(shown("a\n\x7F ü \xFC"), "a\\x0a\\x7f ü \\xfc");
  EXPECT_EQ(shown("äöü", 6), "äöü");
  EXPECT_EQ(shown("äöü", 5), "äö…");
  EXPECT_EQ(shown("\xFF\xFF\xFF", 2), "\\xff\\xff…");
}

}  // namespace
}  // namespace isobar::utf8_test
