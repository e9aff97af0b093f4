#include "core/jobs/trace_numbers.hpp"

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>

namespace isobar {

namespace {

/// Reads digits from the front of a text: "07:15" with width 2 is 7, and ":15" is left.
std::optional<int> take_digits(std::string_view& text, std::size_t width)
{
  int value = 0;
  if (text.size() < width) return std::nullopt;
  for (const char character : text.substr(0, width)) {
    if (character < '0' || character > '9') return std::nullopt;
    value = 10 * value + (character - '0');
  }
  text.remove_prefix(width);
  return value;
}

bool take(std::string_view& text, std::string_view any_of)
{
  if (text.empty() || any_of.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

/// Minutes east of Greenwich of "+08:00", "-0330" or "Z".
std::optional<int> offset_in(std::string_view text)
{
  if (text.empty() || text == "Z") return 0;
  const int sign = text.front() == '-' ? -1 : 1;
  if (!take(text, "+-")) return std::nullopt;
  const auto hours = take_digits(text, 2);
  take(text, ":");
  const auto minutes = take_digits(text, 2);
  if (!hours || !minutes || !text.empty()) return std::nullopt;
  return sign * (60 * *hours + *minutes);
}

}  // namespace

std::optional<std::uint64_t> count_in(std::string_view text)
{
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value > 9'007'199'254'740'992) return std::nullopt;
  return value;
}

std::optional<double> number_in(std::string_view text)
{
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= 0 && value <= 1e15)) return std::nullopt;
  return value;
}

std::optional<Seconds> moment_in(std::string_view text)
{
  namespace chrono = std::chrono;
  const auto year = take_digits(text, 4);
  if (!year || !take(text, "-")) return std::nullopt;
  const auto month = take_digits(text, 2);
  if (!month || !take(text, "-")) return std::nullopt;
  const auto day = take_digits(text, 2);
  if (!day || !take(text, " T")) return std::nullopt;
  const auto hour = take_digits(text, 2);
  if (!hour || *hour > 23 || !take(text, ":")) return std::nullopt;
  const auto minute = take_digits(text, 2);
  if (!minute || *minute > 59 || !take(text, ":")) return std::nullopt;
  const auto second = take_digits(text, 2);
  if (!second || *second > 60) return std::nullopt;
  double fraction = 0;
  if (take(text, ".")) {
    double place = 0.1;
    while (const auto digit = take_digits(text, 1)) {
      fraction += place * *digit;
      place /= 10;
    }
  }
  const auto offset = offset_in(text);
  const chrono::year_month_day date(chrono::year(*year), chrono::month(static_cast<unsigned>(*month)),
                                    chrono::day(static_cast<unsigned>(*day)));
  if (!offset || !date.ok()) return std::nullopt;
  const auto days = chrono::sys_days(date).time_since_epoch().count();
  return Seconds(86400.0 * static_cast<double>(days) + 3600.0 * *hour + 60.0 * (*minute - *offset) + *second +
                 fraction);
}

}  // namespace isobar
