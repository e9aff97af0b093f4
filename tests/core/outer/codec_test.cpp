#include "core/outer/codec.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace isobar::codec_test {
namespace {

Codec codec(const char* text)
{
  return codec_from_text(text);
}

double size_of(const char* text, std::uint64_t values)
{
  return encoded_size(codec(text), values).value;
}

TEST(Codec, HasTheSizesOfItsClosedForm)
{
  for (const std::uint64_t n : {0, 1, 2, 3, 1023, 1024, 1025, 2047, 4095, 4096, 4097, 10'000'019}) {
    const auto blocks = static_cast<double>((n + 1023) / 1024);
    const auto count = static_cast<double>(n);
    EXPECT_EQ(size_of("fp32", n), 4 * count) << n;
    EXPECT_EQ(size_of("bf16", n), 2 * count) << n;
    EXPECT_EQ(size_of("int8", n), count + 4 * blocks) << n;
    EXPECT_EQ(size_of("int4", n), std::ceil(count / 2) + 2 * blocks) << n;
  }
}

TEST(TopK, PacksPlacesAndValuesOfEachChunk)
{
  EXPECT_EQ(size_of("top-k 0.015625", 4096), 64 * (12 + 16) / 8);
  EXPECT_EQ(size_of("top-k 0.015625 2-bit", 4096), 2 + 64 * (12 + 2) / 8);
  EXPECT_EQ(size_of("top-k 0.015625 2-bit", 3 * 4096), 3 * (2 + 64 * (12 + 2) / 8));
  EXPECT_EQ(size_of("top-k 0.01", 4096), 144);      // 41 values of 28 bits: 143.5 bytes
  EXPECT_EQ(size_of("top-k 0.01", 4097), 144 + 4);  // one value of 28 bits in the second chunk
  EXPECT_EQ(size_of("top-k 0.01 2-bit", 1), 2 + 2);
  EXPECT_EQ(size_of("top-k 0.01 2-bit", 0), 0);
}

TEST(TopK, OfTwoBitsTakesAHundredAndFortySixthOfFloat32)
{
  // 64 of 4096 values, 12 bits of place and 2 of value each, as SparseLoCo has them; and our scale of 2 bytes.
  EXPECT_NEAR(4.0 * 4096 / (size_of("top-k 0.015625 2-bit", 4096) - 2), 146.3, 0.05);
}

TEST(TopK, KeepsNoValueMoreForARoundingOfItsFraction)
{
  EXPECT_EQ(kept_values(codec("top-k 0.07"), 100), 7);  // 0.07 x 100 is above 7 in double
  EXPECT_EQ(kept_values(codec("top-k 0.29"), 100), 29);
  EXPECT_EQ(kept_values(codec("top-k 0.01"), 4096), 41);
  EXPECT_EQ(kept_values(codec("top-k 1e-300"), 4096), 1);
  EXPECT_EQ(kept_values(codec("top-k 1"), 4096), 4096);
  EXPECT_EQ(kept_values(codec("top-k 0.5"), 1), 1);
  EXPECT_EQ(kept_values(codec("top-k 0.5"), 0), 0);
}

TEST(TopK, KeepsTheLeastNumberThatIsTheFractionOfAnyChunk)
{
  for (std::uint64_t values = 1; values <= top_k_chunk; ++values) {
    for (std::uint64_t percent = 1; percent <= 100; ++percent) {
      const Codec own{CodecKind::TopK, static_cast<double>(percent) / 100};
      ASSERT_EQ(kept_values(own, values), (values * percent + 99) / 100) << percent << " % of " << values;
    }
  }
}

TEST(Codec, ComesBackFromItsText)
{
  for (const char* text : {"fp32", "bf16", "int8", "int4", "top-k 0.01", "top-k 1", "top-k 0.015625 2-bit"}) {
    EXPECT_EQ(text_of(codec(text)), text);
  }
  EXPECT_TRUE(rc::check("any fraction", [] {
    const auto parts = *rc::gen::inRange<std::uint32_t>(1, 1'000'000'001);
    const Codec own{CodecKind::TopK, parts / 1e9, *rc::gen::element(2U, 16U)};
    RC_ASSERT(codec_from_text(text_of(own)) == own);
  }));
}

TEST(Codec, OfAWrongTextIsRefusedInOneLine)
{
  const std::string fix =
      " is no codec; write fp32, bf16, int8, int4, or top-k and the part of the values that travel, above 0 and at "
      "most "
      "1: \"top-k 0.01\" or \"top-k 0.01 2-bit\"";
  for (const std::string text : {"", "int16", "FP32", "int8 ", "top-k", "top-k ", "top-k 0", "top-k -0.1", "top-k 1.01",
                                 "top-k nan", "top-k inf", "top-k 1e-999", "top-k 0.01 4-bit", "top-k 2-bit",
                                 "top-k 0.01  2-bit", "top-k  0.01", "top-k 0.01x", "top-k +0.01"}) {
    EXPECT_THAT([&] { codec_from_text(text); }, testing::ThrowsMessage<InputError>("\"" + text + "\"" + fix));
  }
  EXPECT_THAT([] { codec_from_text("int8\nint4"); }, testing::ThrowsMessage<InputError>("\"int8\\x0aint4\"" + fix));
}

TEST(Codec, ChangesTheNumericsUnlessItIsFloat32)
{
  for (const auto& [text, changes, sparse] :
       std::vector<std::tuple<const char*, bool, bool>>{{"fp32", false, false},
                                                        {"bf16", true, false},
                                                        {"int8", true, false},
                                                        {"int4", true, false},
                                                        {"top-k 0.5", true, true},
                                                        {"top-k 0.5 2-bit", true, true}}) {
    EXPECT_EQ(changes_numerics(codec(text)), changes) << text;
    EXPECT_EQ(is_sparse(codec(text)), sparse) << text;
  }
}

}  // namespace
}  // namespace isobar::codec_test
