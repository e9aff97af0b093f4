#include "exec/outer/codecs.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace isobar::exec::codecs_test {
namespace {

using Floats = std::vector<float>;
using Data = std::vector<std::byte>;

constexpr float largest = std::numeric_limits<float>::max();
constexpr float least = std::numeric_limits<float>::denorm_min();
constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

const std::vector<std::string> all_codecs = {"fp32", "bf16", "int8", "int4", "top-k 0.03", "top-k 0.03 2-bit"};

Data encoded(const std::string& codec, const Floats& values)
{
  Data bytes(encoded_bytes(codec_from_text(codec), values.size()));
  encode(codec_from_text(codec), values, bytes);
  return bytes;
}

Floats decoded(const std::string& codec, const Data& bytes, std::size_t count)
{
  Floats values(count);
  decode(codec_from_text(codec), bytes, values);
  return values;
}

Floats there_and_back(const std::string& codec, const Floats& values)
{
  return decoded(codec, encoded(codec, values), values.size());
}

Floats normal_values(std::size_t count, unsigned seed = 1, float deviation = 1)
{
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Floats values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

/// Values whose magnitudes span `decades` binary exponents below 2^top, denormal ones included.
Floats spread_values(std::size_t count, unsigned seed, int top, int decades)
{
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> part(-1, 1);
  std::uniform_int_distribution<int> exponent(top - decades, top);
  Floats values(count);
  for (auto& value : values) value = static_cast<float>(std::ldexp(part(random), exponent(random)));
  return values;
}

float largest_magnitude(std::span<const float> values)
{
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

/// Checks that each value differs by at most (1/2 + 2^-15) of the scale of its block, which the bytes say.
template <typename ScaleOf>
void expect_half_a_scale(const std::string& codec, const Floats& values, ScaleOf scale_of)
{
  const Data bytes = encoded(codec, values);
  const Floats back = decoded(codec, bytes, values.size());
  const std::size_t stride = encoded_bytes(codec_from_text(codec), codec_block);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double scale = scale_of(bytes.data() + i / codec_block * stride);
    const double error = std::abs(static_cast<double>(values[i]) - static_cast<double>(back[i]));
    ASSERT_LE(error, scale * (0.5 + 0x1p-15)) << codec << ": value " << i << " is " << values[i];
  }
}

double float_scale(const std::byte* bytes)
{
  std::uint32_t bits = 0;
  for (int i = 3; i >= 0; --i) bits = bits << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return std::bit_cast<float>(bits);
}

double bfloat_scale(const std::byte* bytes)
{
  const auto bits = std::to_integer<std::uint32_t>(bytes[0]) << 16 | std::to_integer<std::uint32_t>(bytes[1]) << 24;
  return std::bit_cast<float>(bits);
}

/// Checks that a block's scale is the least one that takes its largest value to `levels`, up to its own rounding.
void expect_least_scale(double scale, float most, int levels, double relative, double absolute)
{
  const double exact = static_cast<double>(most) / levels;
  EXPECT_LE(scale, exact * (1 + relative) + absolute) << most;
  EXPECT_GE(scale, exact * (1 - relative)) << most;
}

TEST(Int8, HasASignedByteForEachValueAfterTheScaleOfTheirBlock)
{
  Floats values(1026, 0.0F);
  values[0] = 127;
  values[1] = -3;
  values[1023] = 0.6F;
  values[1024] = -254;
  values[1025] = 3.1F;
  const Data bytes = encoded("int8", values);
  ASSERT_EQ(bytes.size(), 1026 + 8);
  EXPECT_EQ(float_scale(bytes.data()), 1);
  EXPECT_EQ(std::to_integer<int>(bytes[4]), 127);
  EXPECT_EQ(std::to_integer<int>(bytes[5]), 256 - 3);
  EXPECT_EQ(std::to_integer<int>(bytes[4 + 1023]), 1);
  EXPECT_EQ(float_scale(bytes.data() + 1028), 2);
  EXPECT_EQ(std::to_integer<int>(bytes[1032]), 256 - 127);
  EXPECT_EQ(std::to_integer<int>(bytes[1033]), 2);
}

TEST(Int4, HasTheFirstHalfOfABlockInTheLowHalvesOfItsBytes)
{
  const Data bytes = encoded("int4", {7, -1, 2, 3, -7});
  ASSERT_EQ(bytes.size(), 5);
  EXPECT_EQ(bfloat_scale(bytes.data()), 1);
  EXPECT_EQ(std::to_integer<int>(bytes[2]), 7 | 3 << 4);
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 15 | 9 << 4);
  EXPECT_EQ(std::to_integer<int>(bytes[4]), 2);
}

TEST(Bf16, RoundsToNearestWithTiesToEvenAndNeverToInfinity)
{
  EXPECT_EQ(there_and_back("bf16", {1, -1.00390625F, 1.01171875F, 1.004F, largest, -largest, 0, least}),
            (Floats{1, -1, 1.015625F, 1.0078125F, 0x1.fep127F, -0x1.fep127F, 0, 0}));
}

TEST(TopK, KeepsTheLargestValuesOfAChunkAndTheFirstOfEqualOnes)
{
  const Floats values = {1, -4, 2, 4, -2, 0.5F};
  EXPECT_EQ(there_and_back("top-k 0.5", values), (Floats{0, -4, 2, 4, 0, 0}));
  EXPECT_EQ(there_and_back("top-k 0.5 2-bit", values), (Floats{0, -4, 4.0F / 3, 4, 0, 0}));
  const Data bytes = encoded("top-k 0.5 2-bit", values);
  ASSERT_EQ(bytes.size(), 2 + 6);  // places 1, 2, 3 of 12 bits, then codes 3, 0, 1 of 2 bits
  EXPECT_EQ(bfloat_scale(bytes.data()), 4);
  EXPECT_EQ(std::to_integer<int>(bytes[2]), 1);
  EXPECT_EQ(std::to_integer<int>(bytes[3]), 2 << 4);
  EXPECT_EQ(std::to_integer<int>(bytes[4]), 0);
  EXPECT_EQ(std::to_integer<int>(bytes[5]), 3);
  EXPECT_EQ(std::to_integer<int>(bytes[6]), 3 << 4);
  EXPECT_EQ(std::to_integer<int>(bytes[7]), 1);
}

TEST(TopK, KeepsTheSameValuesAsASortOfThem)
{
  EXPECT_TRUE(rc::check("any magnitudes", [] {
    const std::size_t count = *rc::gen::inRange<std::size_t>(1, 4097);
    Floats values = spread_values(count, *rc::gen::arbitrary<unsigned>(), 100, *rc::gen::element(0, 1, 200));
    for (std::size_t i = 0; i < count; i += *rc::gen::inRange<std::size_t>(1, 2000)) values[i] = values[0];
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order,
                             [&](std::size_t a, std::size_t b) { return std::abs(values[a]) > std::abs(values[b]); });
    Floats expected(count);
    for (std::size_t i = 0; i < kept_values(codec_from_text("top-k 0.03"), count); ++i) {
      expected[order[i]] = there_and_back("bf16", {values[order[i]]})[0];
    }
    RC_ASSERT(there_and_back("top-k 0.03", values) == expected);
  }));
}

TEST(TopK, OfTwoBitsIsOffByAThirdOfTheLargestValueAtMost)
{
  const Floats values = normal_values(3 * 4096 + 5);
  const Floats back = there_and_back("top-k 0.03 2-bit", values);
  const float most = largest_magnitude(values);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (back[i] == 0) continue;
    ++kept;
    EXPECT_LE(std::abs(values[i] - back[i]), most * (1.0F / 3 + 0x1p-7F));
    EXPECT_EQ(std::signbit(values[i]), std::signbit(back[i]));
  }
  EXPECT_EQ(kept, 3 * 123 + 1);
}

TEST(Codecs, OfFloat32KeepsEveryBit)
{
  const Floats values = {1, -0.0F, 0, least, -largest, 0.1F};
  const Floats back = there_and_back("fp32", values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::bit_cast<std::uint32_t>(values[i]));
  }
}

TEST(Codecs, KeepToHalfAScaleWhateverTheMagnitudes)
{
  EXPECT_TRUE(rc::check("any exponents", [] {
    const int top = *rc::gen::inRange(-148, 129);
    const int decades = *rc::gen::element(0, 1, 7, 40, 300);
    const auto seed = *rc::gen::arbitrary<unsigned>();
    const std::size_t count = *rc::gen::inRange<std::size_t>(0, 2100);
    Floats values = spread_values(count, seed, top, decades);
    for (auto& value : values) value = std::clamp(value, -largest, largest);
    expect_half_a_scale("int8", values, float_scale);
    expect_half_a_scale("int4", values, bfloat_scale);
    for (std::size_t i = 0; i < count; ++i) {
      const float back = there_and_back("bf16", {values[i]})[0];
      const double error = std::abs(static_cast<double>(values[i]) - static_cast<double>(back));
      RC_ASSERT(error <= std::max(std::abs(static_cast<double>(values[i])) * 0x1p-8, 0x1p-134));
    }
  }));
}

TEST(Codecs, HaveTheLeastScaleAtTheEndsOfTheRangeToo)
{
  for (const float most : {least, 2 * least, 63 * least, 64 * least, 100 * least, 126 * least, 190 * least, 0x1p-126F,
                           0x1.fffffep-120F, 1e-30F, 0.1F, 1.0F, 127.0F, 1e30F, 0x1p127F, 0x1.fffffcp127F, largest}) {
    for (const std::size_t count : {1, 2, 1023, 1024, 1025}) {
      Floats values(count, most / 3);
      values[0] = -most;
      if (count > 1024) values[1024] = most;
      expect_half_a_scale("int8", values, float_scale);
      expect_half_a_scale("int4", values, bfloat_scale);
      expect_least_scale(float_scale(encoded("int8", values).data()), most, 127, 0x1p-22, 0x1p-149);
      expect_least_scale(bfloat_scale(encoded("int4", values).data()), most, 7, 0x1p-7, 0x1p-133);
    }
  }
}

TEST(Codecs, HaveAScaleOfZeroForABlockOfZeros)
{
  for (const std::string codec : {"int8", "int4", "top-k 0.03 2-bit"}) {
    const Data bytes = encoded(codec, Floats(1000, -0.0F));
    if (codec.starts_with("int")) {
      EXPECT_EQ(bytes, Data(bytes.size()));
    }
    EXPECT_EQ(decoded(codec, bytes, 1000), Floats(1000, 0.0F));
  }
}

TEST(Codecs, KeepWhatTheyHaveDecodedOnce)
{
  // Not int4: its scale is rounded up, so that a block may have no value of 7 scales.
  for (const std::string codec : {"fp32", "bf16", "int8", "top-k 0.03", "top-k 0.03 2-bit"}) {
    const Floats once = there_and_back(codec, normal_values(5000));
    EXPECT_EQ(there_and_back(codec, once), once) << codec;
  }
}

TEST(Codecs, TakeAsManyBytesAsTheirSizeSaysAndNoMore)
{
  for (const auto& codec : all_codecs) {
    for (std::size_t count = 0; count < 9000; count += count < 20 ? 1 : 509) {
      const Floats values = normal_values(count);
      const std::size_t size = encoded_bytes(codec_from_text(codec), count);
      Data bytes(size + 8, std::byte{0xa5});
      encode(codec_from_text(codec), values, std::span(bytes).first(size));
      EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(size), bytes.end(),
                              [](std::byte byte) { return byte == std::byte{0xa5}; }));
      bytes.resize(size);
      Data again(size, std::byte{0x5a});  // every byte is written
      encode(codec_from_text(codec), values, again);
      EXPECT_EQ(bytes, again) << codec << " of " << count;
    }
  }
}

TEST(Codecs, RefuseAValueThatIsNotFinite)
{
  for (const auto& codec : all_codecs) {
    for (const auto& [value, name] :
         std::vector<std::pair<float, std::string>>{{infinity, "inf"}, {-infinity, "-inf"}, {not_a_number, "nan"}}) {
      Floats values = normal_values(5000);
      values[4321] = value;
      values[4999] = value;
      EXPECT_THAT([&] { encoded(codec, values); },
                  testing::ThrowsMessage<EnvironmentError>("value 4321 to be encoded is " + name +
                                                           "; outer gradients are finite unless training diverges"));
    }
  }
}

TEST(Codecs, RefuseBytesOfAnotherLength)
{
  for (const auto& codec : all_codecs) {
    const Data bytes = encoded(codec, normal_values(100));
    Data longer = bytes;
    longer.push_back({});
    const Data shorter(bytes.begin(), bytes.end() - 1);
    for (const Data& wrong : {longer, shorter, Data()}) {
      EXPECT_THAT([&] { decoded(codec, wrong, 100); },
                  testing::ThrowsMessage<EnvironmentError>(fmt::format(
                      "encoded values: {} B; 100 values as {} have {} B", wrong.size(), codec, bytes.size())));
    }
  }
}

void expect_refused(const std::string& codec, const Data& bytes, std::size_t count, const std::string& what)
{
  EXPECT_THAT([&] { decoded(codec, bytes, count); },
              testing::ThrowsMessage<EnvironmentError>("encoded values: " + what));
}

Data bytes_of(std::initializer_list<int> numbers)
{
  Data bytes;
  for (const int number : numbers) bytes.push_back(static_cast<std::byte>(number));
  return bytes;
}

TEST(Codecs, RefuseBytesThatNoEncoderWrites)
{
  expect_refused("fp32", bytes_of({0, 0, 0x80, 0x7f}), 1, "one is not finite");
  expect_refused("bf16", bytes_of({0xc0, 0x7f}), 1, "one is not finite");
  expect_refused("int8", bytes_of({0, 0, 0x80, 0x7f, 1}), 1, "a block has the scale inf");
  expect_refused("int8", bytes_of({0, 0, 0xc0, 0x7f, 1}), 1, "a block has the scale nan");
  expect_refused("int8", bytes_of({0, 0, 0x80, 0xbf, 1}), 1, "a block has the scale -1");
  expect_refused("int8", bytes_of({0, 0, 0x80, 0x3f, 0x80}), 1, "one is -128 of 127");
  expect_refused("int4", bytes_of({0x80, 0xbf, 1}), 1, "a block has the scale -1");
  expect_refused("int4", bytes_of({0x80, 0x3f, 0x08}), 1, "one is -8 of 7");
  expect_refused("int4", bytes_of({0x80, 0x3f, 0x80}), 2, "one is -8 of 7");
  expect_refused("top-k 0.1", bytes_of({100, 0, 0, 0}), 10, "place 100 in a chunk of 10 values");
  expect_refused("top-k 0.1", bytes_of({0, 0, 0xf8, 0x07}), 10, "one is not finite");
  expect_refused("top-k 0.2 2-bit", bytes_of({0, 0, 5, 0x50, 0, 0}), 10, "place 5 after place 5");
  expect_refused("top-k 0.2 2-bit", bytes_of({0, 0, 5, 0x40, 0, 0}), 10, "place 4 after place 5");
  expect_refused("top-k 0.2 2-bit", bytes_of({0x80, 0x7f, 5, 0x60, 0, 0}), 10, "a block has the scale inf");
}

TEST(Codecs, DecodeAnyBytesToFiniteValuesOrRefuseThem)
{
  EXPECT_TRUE(rc::check("any bytes", [] {
    const auto codec = *rc::gen::elementOf(all_codecs);
    const std::size_t count = *rc::gen::inRange<std::size_t>(0, 300);
    std::mt19937 random(*rc::gen::arbitrary<unsigned>());
    Data bytes(encoded_bytes(codec_from_text(codec), count));
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    try {
      for (const float value : decoded(codec, bytes, count)) RC_ASSERT(std::isfinite(value));
    } catch (const EnvironmentError& error) {
      RC_ASSERT(std::string(error.what()).starts_with("encoded values: "));
    }
  }));
}

TEST(ErrorFeedbacks, HaveSentAllButTheirResidual)
{
  constexpr std::size_t count = 5000;
  constexpr int rounds = 30;
  for (const auto& codec : all_codecs) {
    ErrorFeedback feedback(codec_from_text(codec), Floats(count));
    std::vector<double> given(count);
    std::vector<double> sent(count);
    std::vector<double> magnitudes(count);
    Data bytes(encoded_bytes(codec_from_text(codec), count));
    for (int round = 0; round < rounds; ++round) {
      const Floats values = normal_values(count, static_cast<unsigned>(round));
      feedback.encode(values, bytes);
      const Floats arrived = decoded(codec, bytes, count);
      for (std::size_t i = 0; i < count; ++i) {
        given[i] += static_cast<double>(values[i]);
        sent[i] += static_cast<double>(arrived[i]);
        magnitudes[i] += std::abs(static_cast<double>(values[i]));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(sent[i] + static_cast<double>(feedback.residual()[i]), given[i], 1e-6 * magnitudes[i]) << codec;
    }
  }
}

TEST(ErrorFeedbacks, SendAtLastWhatTopKLeavesOut)
{
  ErrorFeedback feedback(codec_from_text("top-k 0.25"), Floats(4));
  Data bytes(encoded_bytes(codec_from_text("top-k 0.25"), 4));
  Floats sums(4);
  for (int round = 0; round < 1000; ++round) {
    feedback.encode(Floats{1, 0.5F, 0.25F, 0.125F}, bytes);
    const Floats sent = decoded("top-k 0.25", bytes, 4);
    for (std::size_t i = 0; i < 4; ++i) sums[i] += sent[i];
  }
  EXPECT_NEAR(sums[3], 125, 5);
}

TEST(ErrorFeedbacks, ForgetByTheirDecayAndResumeFromTheirResidual)
{
  const auto codec = codec_from_text("top-k 0.5");
  ErrorFeedback feedback(codec, {0, 8}, 0.5F);
  Data bytes(encoded_bytes(codec, 2));
  feedback.encode(Floats{5, 0}, bytes);
  EXPECT_EQ(decoded("top-k 0.5", bytes, 2), (Floats{5, 0}));
  EXPECT_THAT(feedback.residual(), testing::ElementsAre(0, 4));
  ErrorFeedback resumed(codec, {feedback.residual().begin(), feedback.residual().end()}, 0.5F);
  resumed.encode(Floats{1, 0}, bytes);
  EXPECT_EQ(decoded("top-k 0.5", bytes, 2), (Floats{0, 2}));
}

}  // namespace
}  // namespace isobar::exec::codecs_test
