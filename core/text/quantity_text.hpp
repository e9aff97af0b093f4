#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace isobar {

/// Parses a quantity as files and options write it: "number unit", 0 to 1e18 of the base unit. The unit is mandatory.
///
/// Units: B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024); s, ms, us, ns, min, h;
/// FLOP, kFLOP, MFLOP, GFLOP, TFLOP, PFLOP; each FLOP unit + "/s"; each byte unit + "/s", and bit/s, kbit/s, Mbit/s,
/// Gbit/s, Tbit/s; USD/h. The space between number and unit is optional. Spellings that differ from another unit only
/// by case (Gbps and GBps) are refused, and the message names the right one.
///
/// @throws std::invalid_argument with the fault but no place: `"80" is not a size; write a number and a unit, such as
/// "80 GB"`. The reader that knows the place adds it.
Bytes bytes_from_text(std::string_view text);
Seconds seconds_from_text(std::string_view text);
Flops flops_from_text(std::string_view text);
BytesPerSecond bandwidth_from_text(std::string_view text);
FlopsPerSecond speed_from_text(std::string_view text);
/// US dollars per hour: "2.48 USD/h".
double price_from_text(std::string_view text);

/// A quantity for people: three significant digits and a prefix, such as "1.54 GiB", "23.1 ms", "9.30 TFLOP/s",
/// "1.25 GB/s".
std::string text_of(Bytes size);
std::string text_of(Seconds time);
std::string text_of(Flops work);
std::string text_of(BytesPerSecond bandwidth);
std::string text_of(FlopsPerSecond speed);

/// A number of things: "1 device", "2 devices"; `ending` makes the plural.
std::string counted(std::uint64_t number, std::string_view noun, std::string_view ending = "s");

/// Two numbers with `digits` significant digits, or with as many more as it takes until unequal numbers look unequal.
std::pair<std::string, std::string> distinct_texts(double a, double b, int digits = 9);

}  // namespace isobar
