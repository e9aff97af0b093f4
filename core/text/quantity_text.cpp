#include "core/text/quantity_text.hpp"

#include "core/errors.hpp"
#include "core/text/digits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <vector>

namespace isobar {

namespace {

struct QuantityUnit {
  std::string name;
  double factor;
  /// Other spellings that people use. They are refused, and the message names `name` instead.
  std::vector<std::string> misspellings = {};
};

/// The largest value of any kind, in base units (B, s, FLOP, …): an exabyte, an exaFLOP, 32 billion years. Sums and
/// products of such values stay far from the limits of doubles and of 64-bit integers.
constexpr double largest_value = 1e18;

/// One kind of quantity, as messages describe it.
struct Kind {
  std::string_view noun;     ///< with its article
  std::string_view example;  ///< number and unit
  std::vector<QuantityUnit> units;
};

struct Prefix {
  std::string_view name;
  double factor;
};
constexpr std::array<Prefix, 5> decimal_prefixes = {{{"", 1}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}}};
constexpr std::array<Prefix, 4> binary_prefixes = {{{"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}}};

std::vector<QuantityUnit> byte_units(std::string_view per_time)
{
  std::vector<QuantityUnit> units;
  auto add = [&](const Prefix& prefix) {
    QuantityUnit unit{fmt::format("{}B{}", prefix.name, per_time), prefix.factor};
    if (!per_time.empty()) unit.misspellings = {fmt::format("{}Bps", prefix.name)};
    units.push_back(std::move(unit));
  };
  for (const auto& prefix : decimal_prefixes) add(prefix);
  for (const auto& prefix : binary_prefixes) add(prefix);
  return units;
}

std::vector<QuantityUnit> bandwidth_units()
{
  auto units = byte_units("/s");
  for (const auto& [prefix, factor] : decimal_prefixes) {
    units.push_back({fmt::format("{}bit/s", prefix),
                     factor / 8,
                     {fmt::format("{}bps", prefix), fmt::format("{}b/s", prefix), fmt::format("{}bits/s", prefix)}});
  }
  return units;
}

std::vector<QuantityUnit> flop_units(std::string_view per_time)
{
  std::vector<QuantityUnit> units;
  auto add = [&](const Prefix& prefix) {
    // "GFLOPS" is a speed to some and a plural to others; "Gf" is SimGrid's spelling.
    QuantityUnit unit{fmt::format("{}FLOP{}", prefix.name, per_time), prefix.factor};
    for (const auto spelling : {"FLOPS", "f"}) unit.misspellings.push_back(fmt::format("{}{}", prefix.name, spelling));
    if (!per_time.empty()) {
      for (const auto spelling : {"FLOP", "FLOPS/s", "FLOPps"}) {
        unit.misspellings.push_back(fmt::format("{}{}", prefix.name, spelling));
      }
    }
    units.push_back(std::move(unit));
  };
  for (const auto& prefix : decimal_prefixes) add(prefix);
  add({"P", 1e15});
  return units;
}

const Kind& sizes()
{
  static const Kind kind{"a size", "80 GB", byte_units("")};
  return kind;
}
const Kind& times()
{
  static const Kind kind{"a time",
                         "20 ms",
                         {{"s", 1, {"sec", "second", "seconds"}},
                          {"ms", 1e-3, {"msec"}},
                          {"us", 1e-6, {"µs", "μs", "usec"}},
                          {"ns", 1e-9, {"nsec"}},
                          {"min", 60, {"m", "minute", "minutes"}},
                          {"h", 3600, {"hour", "hours"}}}};
  return kind;
}
const Kind& work()
{
  static const Kind kind{"an amount of work", "2 GFLOP", flop_units("")};
  return kind;
}
const Kind& bandwidths()
{
  static const Kind kind{"a bandwidth", "10 Gbit/s", bandwidth_units()};
  return kind;
}
const Kind& speeds()
{
  static const Kind kind{"a speed", "9.3 TFLOP/s", flop_units("/s")};
  return kind;
}
const Kind& prices()
{
  static const Kind kind{"a price", "2.48 USD/h", {{"USD/h", 1, {"$/h", "USD"}}}};
  return kind;
}

/// The length of the decimal number that `text` begins with: digits, an optional fraction and an optional exponent.
std::size_t number_length(std::string_view text)
{
  auto skip_digits = [&](std::size_t from) {
    std::size_t end = from;
    while (end < text.size() && is_digit(text[end])) ++end;
    return end;
  };
  std::size_t at = skip_digits(0);
  if (at == 0) return 0;
  if (at + 1 < text.size() && text[at] == '.' && is_digit(text[at + 1])) at = skip_digits(at + 1);
  if (at + 1 < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    const std::size_t digits = at + (text[at + 1] == '+' || text[at + 1] == '-' ? 2 : 1);
    if (const std::size_t end = skip_digits(digits); end > digits) at = end;
  }
  return at;
}

bool same_except_for_case(std::string_view a, std::string_view b)
{
  auto lower = [](char character) {
    return character >= 'A' && character <= 'Z' ? static_cast<char>(character - 'A' + 'a') : character;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

/// The units that the user may have meant: those of which it is a known misspelling, else those whose name or
/// misspelling differs from it only by case.
std::vector<std::string> meant_units(const Kind& kind, std::string_view written)
{
  std::vector<std::string> exact;
  std::vector<std::string> except_for_case;
  for (const auto& unit : kind.units) {
    bool differs_by_case = same_except_for_case(unit.name, written);
    for (const auto& misspelling : unit.misspellings) {
      if (misspelling == written) exact.push_back(unit.name);
      differs_by_case = differs_by_case || same_except_for_case(misspelling, written);
    }
    if (differs_by_case) except_for_case.push_back(unit.name);
  }
  return exact.empty() ? except_for_case : exact;
}

[[noreturn]] void refuse(const std::string& what)
{
  throw std::invalid_argument(what);
}

double value_from_text(std::string_view text, const Kind& kind)
{
  const bool negative = text.starts_with('-') && number_length(text.substr(1)) > 0;
  if (negative) refuse(fmt::format("{} is negative; {} is 0 or more", in_quotes(text), kind.noun));

  const std::size_t length = number_length(text);
  const std::string_view digits = text.substr(0, length);
  std::string_view name = text.substr(length);
  if (name.starts_with(' ')) name.remove_prefix(1);
  if (length == 0 || name.empty()) {
    refuse(fmt::format("{} is not {}; write a number and a unit, such as \"{}\"", in_quotes(text), kind.noun,
                       kind.example));
  }

  const auto unit = std::find_if(kind.units.begin(), kind.units.end(),
                                 [&](const QuantityUnit& candidate) { return candidate.name == name; });
  if (unit == kind.units.end()) {
    std::vector<std::string> right;
    for (const auto& meant : meant_units(kind, name)) right.push_back(fmt::format("\"{} {}\"", digits, meant));
    if (!right.empty()) {
      refuse(fmt::format("{} is not {}; write {}", in_quotes(text), kind.noun, fmt::join(right, " or ")));
    }
    std::vector<std::string> names;
    for (const auto& known : kind.units) names.push_back(known.name);
    refuse(fmt::format("{} is not {}; the units are {}", in_quotes(text), kind.noun, fmt::join(names, ", ")));
  }

  // The grammar above has no sign and no hexadecimal digits, so only the range can fail.
  double number = 0;
  const auto [end, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const double value = number * unit->factor;
  // from_chars has one error for both ends of the range.
  const bool is_too_small =
      fault != std::errc{} ? std::strtod(std::string(digits).c_str(), nullptr) < 1 : number > 0 && value == 0;
  if (is_too_small) {
    refuse(fmt::format("{} is too small to tell from 0 {}", in_quotes(text), kind.units.front().name));
  }
  if (fault != std::errc{} || !(value <= largest_value)) {
    refuse(fmt::format("{} is out of range; the largest is {:.0e} {}", in_quotes(text), largest_value,
                       kind.units.front().name));
  }
  return value;
}

/// Three significant digits of `value` in the largest of `units` (ascending) that leaves at least 1 before the point.
std::string rounded_text(double value, const std::vector<Prefix>& units)
{
  std::size_t best = 0;
  // 0.9995 would be shown as 1.00.
  while (best + 1 < units.size() && std::abs(value) >= 0.9995 * units[best + 1].factor) ++best;
  const double scaled = value / units[best].factor;
  const double size = std::abs(scaled);
  const auto& name = units[best].name;
  if (size < 0.9995 || (best == 0 && size < 1000 && scaled == std::floor(scaled))) {
    return fmt::format("{:.3g} {}", scaled, name);
  }
  return fmt::format("{:.{}f} {}", scaled, size < 9.995 ? 2 : size < 99.95 ? 1 : 0, name);
}

}  // namespace

Bytes bytes_from_text(std::string_view text)
{
  return Bytes(value_from_text(text, sizes()));
}
Seconds seconds_from_text(std::string_view text)
{
  return Seconds(value_from_text(text, times()));
}
Flops flops_from_text(std::string_view text)
{
  return Flops(value_from_text(text, work()));
}
BytesPerSecond bandwidth_from_text(std::string_view text)
{
  return BytesPerSecond(value_from_text(text, bandwidths()));
}
FlopsPerSecond speed_from_text(std::string_view text)
{
  return FlopsPerSecond(value_from_text(text, speeds()));
}
double price_from_text(std::string_view text)
{
  return value_from_text(text, prices());
}

std::string text_of(Bytes size)
{
  static const std::vector<Prefix> units = {
      {"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  return rounded_text(size.value, units);
}

std::string text_of(Seconds time)
{
  static const std::vector<Prefix> units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                                            {"s", 1},     {"min", 60},  {"h", 3600}};
  return time.value == 0 ? "0 s" : rounded_text(time.value, units);
}

std::string text_of(Flops amount)
{
  static const std::vector<Prefix> units = {{"FLOP", 1},    {"kFLOP", 1e3},  {"MFLOP", 1e6},
                                            {"GFLOP", 1e9}, {"TFLOP", 1e12}, {"PFLOP", 1e15}};
  return rounded_text(amount.value, units);
}

std::string text_of(BytesPerSecond bandwidth)
{
  static const std::vector<Prefix> units = {{"B/s", 1}, {"kB/s", 1e3}, {"MB/s", 1e6}, {"GB/s", 1e9}, {"TB/s", 1e12}};
  return rounded_text(bandwidth.value, units);
}

std::string text_of(FlopsPerSecond speed)
{
  return text_of(Flops(speed.value)) + "/s";
}

std::string counted(std::uint64_t number, std::string_view noun, std::string_view ending)
{
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : ending);
}

std::pair<std::string, std::string> distinct_texts(double a, double b, int digits)
{
  constexpr int all_digits = 17;
  std::pair<std::string, std::string> texts;
  do {
    texts = {fmt::format("{:.{}g}", a, digits), fmt::format("{:.{}g}", b, digits)};
  } while (texts.first == texts.second && ++digits <= all_digits);
  return texts;
}

}  // namespace isobar
