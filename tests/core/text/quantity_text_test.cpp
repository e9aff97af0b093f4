#include "core/text/quantity_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

namespace isobar::quantity_text_test {
namespace {

template <typename Read>
std::string fault_of(Read read, std::string_view text)
{
  try {
    read(text);
  } catch (const std::invalid_argument& fault) {
    return fault.what();
  }
  return "accepted";
}

TEST(BytesFromText, ReadsEveryUnit)
{
  EXPECT_EQ(bytes_from_text("7 B").value, 7);
  EXPECT_EQ(bytes_from_text("7 kB").value, 7e3);
  EXPECT_EQ(bytes_from_text("7 MB").value, 7e6);
  EXPECT_EQ(bytes_from_text("7 GB").value, 7e9);
  EXPECT_EQ(bytes_from_text("7 TB").value, 7e12);
  EXPECT_EQ(bytes_from_text("7 KiB").value, 7168);
  EXPECT_EQ(bytes_from_text("7 MiB").value, 7.0 * 1048576);
  EXPECT_EQ(bytes_from_text("7 GiB").value, 7.0 * 1073741824);
  EXPECT_EQ(bytes_from_text("7 TiB").value, 7.0 * 1099511627776);
}

TEST(SecondsFromText, ReadsEveryUnit)
{
  EXPECT_DOUBLE_EQ(seconds_from_text("1.5 h").value, 5400);
  EXPECT_DOUBLE_EQ(seconds_from_text("2 min").value, 120);
  EXPECT_DOUBLE_EQ(seconds_from_text("2 s").value, 2);
  EXPECT_DOUBLE_EQ(seconds_from_text("2 ms").value, 2e-3);
  EXPECT_DOUBLE_EQ(seconds_from_text("2 us").value, 2e-6);
  EXPECT_DOUBLE_EQ(seconds_from_text("2 ns").value, 2e-9);
}

TEST(FlopsFromText, ReadsEveryUnit)
{
  EXPECT_EQ(flops_from_text("3 FLOP").value, 3);
  EXPECT_EQ(flops_from_text("3 kFLOP").value, 3e3);
  EXPECT_EQ(flops_from_text("3 MFLOP").value, 3e6);
  EXPECT_EQ(flops_from_text("3 GFLOP").value, 3e9);
  EXPECT_EQ(flops_from_text("3 TFLOP").value, 3e12);
  EXPECT_EQ(flops_from_text("3 PFLOP").value, 3e15);
  EXPECT_DOUBLE_EQ(speed_from_text("9.3 TFLOP/s").value, 9.3e12);
  EXPECT_EQ(speed_from_text("3 PFLOP/s").value, 3e15);
  EXPECT_EQ(speed_from_text("3FLOP/s").value, 3);
}

TEST(BandwidthFromText, DistinguishesBitsFromBytes)
{
  EXPECT_EQ(bandwidth_from_text("8 bit/s").value, 1);
  EXPECT_EQ(bandwidth_from_text("8 kbit/s").value, 1e3);
  EXPECT_EQ(bandwidth_from_text("8 Mbit/s").value, 1e6);
  EXPECT_EQ(bandwidth_from_text("10 Gbit/s").value, 1.25e9);
  EXPECT_EQ(bandwidth_from_text("8 Tbit/s").value, 1e12);
  EXPECT_EQ(bandwidth_from_text("10 GB/s").value, 1e10);
  EXPECT_EQ(bandwidth_from_text("1 GiB/s").value, 0x1p30);
}

TEST(PriceFromText, ReadsDollarsPerHour)
{
  EXPECT_EQ(price_from_text("2.48 USD/h"), 2.48);
}

TEST(QuantityText, AcceptsAnOptionalSpaceAndExponents)
{
  EXPECT_EQ(bytes_from_text("80GB").value, 80e9);
  EXPECT_EQ(bytes_from_text("1.5e3 kB").value, 1.5e6);
  EXPECT_EQ(bytes_from_text("15E-1 kB").value, 1.5e3);
  EXPECT_EQ(bytes_from_text("1e+3B").value, 1e3);
  EXPECT_EQ(bytes_from_text("0 B").value, 0);
  EXPECT_EQ(bytes_from_text("0.5 kB").value, 500);
}

TEST(QuantityText, RefusesWhatIsNotANumberWithAUnit)
{
  for (const std::string text : {"80", "0", "", " ", "GB", "80 ", "NaN GB", "nan", "inf GB", "infinity", "+3 GB",
                                 "- 3 GB", ".5 GB", "GB 80", "80  GB", " 80 GB", "80\tGB", "eighty GB"}) {
    const std::string shown = text == "80\tGB" ? "80\\x09GB" : text;
    const auto fault = fault_of(bytes_from_text, text);
    if (text == "80  GB" || text == "80\tGB") {
      EXPECT_THAT(fault, testing::StartsWith("\"" + shown + "\" is not a size; the units are B, ")) << text;
    } else {
      EXPECT_EQ(fault, "\"" + shown + "\" is not a size; write a number and a unit, such as \"80 GB\"") << text;
    }
  }
  EXPECT_EQ(fault_of(seconds_from_text, "20"), "\"20\" is not a time; write a number and a unit, such as \"20 ms\"");
  EXPECT_EQ(fault_of(flops_from_text, "2"),
            "\"2\" is not an amount of work; write a number and a unit, such as \"2 GFLOP\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "2"),
            "\"2\" is not a bandwidth; write a number and a unit, such as \"10 Gbit/s\"");
  EXPECT_EQ(fault_of(speed_from_text, "2"), "\"2\" is not a speed; write a number and a unit, such as \"9.3 TFLOP/s\"");
  EXPECT_EQ(fault_of(price_from_text, "2"), "\"2\" is not a price; write a number and a unit, such as \"2.48 USD/h\"");
}

TEST(QuantityText, RefusesTrailingTextAndOtherNotations)
{
  const std::string units = " is not a size; the units are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB";
  for (const std::string text : {"80 GB of it", "80 GB ", "0x10 GB", "1e GB", "1.5.2 GB", "1. GB", "1,5 GB",
                                 "80 parsec", "80 GB/s", "80 GFLOP", "3e5", "1_000 B"}) {
    const auto fault = fault_of(bytes_from_text, text);
    if (text == "3e5") {
      EXPECT_EQ(fault, "\"3e5\" is not a size; write a number and a unit, such as \"80 GB\"");
    } else {
      EXPECT_EQ(fault, "\"" + text + "\"" + units);
    }
  }
  EXPECT_EQ(fault_of(seconds_from_text, "3 parsec"), "\"3 parsec\" is not a time; the units are s, ms, us, ns, min, h");
}

TEST(QuantityText, RefusesNegativeTooLargeAndTooSmallValues)
{
  EXPECT_EQ(fault_of(bytes_from_text, "-3 GB"), "\"-3 GB\" is negative; a size is 0 or more");
  EXPECT_EQ(fault_of(seconds_from_text, "-0.5 s"), "\"-0.5 s\" is negative; a time is 0 or more");
  EXPECT_EQ(fault_of(bytes_from_text, "1e999 B"), "\"1e999 B\" is out of range; the largest is 1e+18 B");
  EXPECT_EQ(fault_of(bytes_from_text, "1e308 TB"), "\"1e308 TB\" is out of range; the largest is 1e+18 B");
  EXPECT_EQ(fault_of(seconds_from_text, "1e-400s"), "\"1e-400s\" is too small to tell from 0 s");
  EXPECT_EQ(fault_of(seconds_from_text, "1e-320 ns"), "\"1e-320 ns\" is too small to tell from 0 s");
  EXPECT_EQ(seconds_from_text("0e-400 s"), Seconds(0));
}

TEST(QuantityText, NamesTheUnitThatAMisspellingMeans)
{
  EXPECT_EQ(fault_of(bytes_from_text, "80 gb"), "\"80 gb\" is not a size; write \"80 GB\"");
  EXPECT_EQ(fault_of(bytes_from_text, "80Gb"), "\"80Gb\" is not a size; write \"80 GB\"");
  EXPECT_EQ(fault_of(bytes_from_text, "4 KB"), "\"4 KB\" is not a size; write \"4 kB\"");
  EXPECT_EQ(fault_of(bytes_from_text, "4 kib"), "\"4 kib\" is not a size; write \"4 KiB\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "10 Gbps"), "\"10 Gbps\" is not a bandwidth; write \"10 Gbit/s\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "10 GBps"), "\"10 GBps\" is not a bandwidth; write \"10 GB/s\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "10 Gb/s"), "\"10 Gb/s\" is not a bandwidth; write \"10 Gbit/s\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "10 gbps"),
            "\"10 gbps\" is not a bandwidth; write \"10 GB/s\" or \"10 Gbit/s\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "10 gbit/s"), "\"10 gbit/s\" is not a bandwidth; write \"10 Gbit/s\"");
  EXPECT_EQ(fault_of(bandwidth_from_text, "1 GiBps"), "\"1 GiBps\" is not a bandwidth; write \"1 GiB/s\"");
  EXPECT_EQ(fault_of(speed_from_text, "9.3 TFLOPS"), "\"9.3 TFLOPS\" is not a speed; write \"9.3 TFLOP/s\"");
  EXPECT_EQ(fault_of(speed_from_text, "9.3 tflop/s"), "\"9.3 tflop/s\" is not a speed; write \"9.3 TFLOP/s\"");
  EXPECT_EQ(fault_of(speed_from_text, "9.3 TFLOP"), "\"9.3 TFLOP\" is not a speed; write \"9.3 TFLOP/s\"");
  EXPECT_EQ(fault_of(speed_from_text, "9.3Tf"), "\"9.3Tf\" is not a speed; write \"9.3 TFLOP/s\"");
  EXPECT_EQ(fault_of(flops_from_text, "2 GFLOPS"), "\"2 GFLOPS\" is not an amount of work; write \"2 GFLOP\"");
  EXPECT_EQ(fault_of(flops_from_text, "2 Gflops"), "\"2 Gflops\" is not an amount of work; write \"2 GFLOP\"");
  EXPECT_EQ(fault_of(seconds_from_text, "2 sec"), "\"2 sec\" is not a time; write \"2 s\"");
  EXPECT_EQ(fault_of(seconds_from_text, "2 MS"), "\"2 MS\" is not a time; write \"2 ms\"");
  EXPECT_EQ(fault_of(seconds_from_text, "2 µs"), "\"2 µs\" is not a time; write \"2 us\"");
  EXPECT_EQ(fault_of(price_from_text, "2.48 usd/h"), "\"2.48 usd/h\" is not a price; write \"2.48 USD/h\"");
}

TEST(QuantityText, KeepsMessagesOnOneShortLine)
{
  EXPECT_EQ(fault_of(bytes_from_text, std::string(70, 'x')),
            "\"" + std::string(60, 'x') + "…\" is not a size; write a number and a unit, such as \"80 GB\"");
  EXPECT_EQ(fault_of(bytes_from_text, "8\nGB"),
            "\"8\\x0aGB\" is not a size; the units are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB");
}

TEST(TextOf, ShowsThreeSignificantDigitsAndAPrefix)
{
  EXPECT_EQ(text_of(Bytes(0)), "0 B");
  EXPECT_EQ(text_of(Bytes(384)), "384 B");
  EXPECT_EQ(text_of(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(text_of(Bytes(1.54 * 0x1p30)), "1.54 GiB");
  EXPECT_EQ(text_of(Bytes(1012 * 0x1p20)), "1012 MiB");
  EXPECT_EQ(text_of(Bytes(80 * 0x1p40)), "80.0 TiB");
  EXPECT_EQ(text_of(Seconds(0)), "0 s");
  EXPECT_EQ(text_of(Seconds(0.0231)), "23.1 ms");
  EXPECT_EQ(text_of(Seconds(2.5e-10)), "0.25 ns");
  EXPECT_EQ(text_of(Seconds(5)), "5.00 s");
  EXPECT_EQ(text_of(Seconds(90)), "1.50 min");
  EXPECT_EQ(text_of(Seconds(7200)), "2.00 h");
  EXPECT_EQ(text_of(Flops(2.1e9)), "2.10 GFLOP");
  EXPECT_EQ(text_of(FlopsPerSecond(9.3e12)), "9.30 TFLOP/s");
  EXPECT_EQ(text_of(BytesPerSecond(1.25e9)), "1.25 GB/s");
}

TEST(Counted, HasThePluralUnlessThereIsOne)
{
  EXPECT_EQ(counted(0, "device"), "0 devices");
  EXPECT_EQ(counted(1, "device"), "1 device");
  EXPECT_EQ(counted(2, "device"), "2 devices");
  EXPECT_EQ(counted(1, "micro-batch", "es"), "1 micro-batch");
  EXPECT_EQ(counted(12, "micro-batch", "es"), "12 micro-batches");
}

TEST(DistinctTexts, ShowsNineDigitsOrAsManyAsNeeded)
{
  EXPECT_EQ(distinct_texts(1, 2), std::pair(std::string("1"), std::string("2")));
  EXPECT_EQ(distinct_texts(1.0 / 3, 0.3333333333),
            std::pair(std::string("0.33333333333"), std::string("0.3333333333")));
  EXPECT_EQ(distinct_texts(1, std::nextafter(1, 2)), std::pair(std::string("1"), std::string("1.0000000000000002")));
  EXPECT_EQ(distinct_texts(0.1, 0.1).first, "0.10000000000000001");
}

TEST(TextOf, RoundsUpToTheNextPrefix)
{
  EXPECT_EQ(text_of(BytesPerSecond(999.4e6)), "999 MB/s");
  EXPECT_EQ(text_of(BytesPerSecond(999.6e6)), "1.00 GB/s");
  EXPECT_EQ(text_of(Seconds(0.99996)), "1.00 s");
  EXPECT_EQ(text_of(Seconds(9.996e-3)), "10.0 ms");
  EXPECT_EQ(text_of(Seconds(99.96e-3)), "100 ms");
}

TEST(TextOf, ReadsBackToWithinHalfAUnitOfTheThirdDigit)
{
  for (double size = 1; size < 1e15; size *= 1.37) {
    EXPECT_NEAR(bytes_from_text(text_of(Bytes(size))).value, size, 0.00501 * size);
    EXPECT_NEAR(speed_from_text(text_of(FlopsPerSecond(size))).value, size, 0.00501 * size);
    EXPECT_NEAR(seconds_from_text(text_of(Seconds(size * 1e-9))).value, size * 1e-9, 0.00501e-9 * size);
  }
}

}  // namespace
}  // namespace isobar::quantity_text_test
