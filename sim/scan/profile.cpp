#include "sim/scan/profile.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

namespace isobar::sim {

namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

std::vector<std::string> words_of(std::string_view line)
{
  constexpr std::string_view blanks = " \t\v\f\r";
  std::vector<std::string> words;
  while (true) {
    const auto begin = line.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const auto end = std::min(line.find_first_of(blanks), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

class ProfileScanner {
 public:
  ProfileScanner(const std::string& name, int first_line, double periodicity)
      : name_(name), line_(first_line), loops_(periodicity > 0), periodicity_(periodicity)
  {
  }

  ProfileRange scan(std::string_view text)
  {
    while (true) {
      const auto end = std::min(text.find('\n'), text.size());
      scan_line(text.substr(0, end));
      if (end == text.size()) break;
      text.remove_prefix(end + 1);
      ++line_;
    }
    check_loop();
    return range_;
  }

 private:
  /// The values that a number, given or drawn, may take.
  struct Span {
    double lowest;
    double highest;
  };

  [[noreturn]] void fail(const std::string& what) const { throw InputError(fmt::format("{}:{}", name_, line_), what); }

  void scan_line(std::string_view line)
  {
    const auto words = words_of(line);
    if (words.empty() || words[0].starts_with('#') || words[0].starts_with('%')) return;
    if (words[0] == "PERIODICITY" || words[0] == "LOOPAFTER") {
      if (words.size() != 2) fail(fmt::format("{} needs one number of seconds", words[0]));
      (words[0] == "PERIODICITY" ? periodicity_ : loop_delay_) = number(words[1]);
      loops_ = true;
    } else if (words[0] == "STOCHASTIC") {
      if (words.size() > 2 || (words.size() == 2 && words[1] != "LOOP")) {
        fail("only LOOP may follow STOCHASTIC");
      }
      stochastic_ = true;
      loops_ = loops_ || words.size() == 2;
    } else {
      scan_event(words);
    }
  }

  void scan_event(const std::vector<std::string>& words)
  {
    std::size_t next = 0;
    const Span date = span(words, next, "date");
    const Span value = span(words, next, "value");
    if (!stochastic_) {
      if (date.lowest < last_date_) {
        fail(fmt::format("date {} comes after date {}; dates must ascend from 0", words[0], last_date_));
      }
      last_date_ = date.lowest;
    } else {
      last_date_ = std::max(last_date_, date.highest);
    }
    if (value.lowest < 0) fail("a value below 0");
    range_.lowest = std::min(range_.lowest, value.lowest);
    range_.highest = std::max(range_.highest, value.highest);
    ++events_;
  }

  Span span(const std::vector<std::string>& words, std::size_t& next, const char* part)
  {
    const std::string word = next < words.size() ? words[next] : "";
    const auto is = [&word](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), word) != names.end();
    };
    const bool normal = is({"NORM", "NORMAL", "GAUSS", "GAUSSIAN"});
    const bool uniform = is({"UNIF", "UNIFORM"});
    const bool exponential = is({"EXP", "EXPONENTIAL"});
    const bool named = normal || uniform || exponential || word == "DET";
    const std::size_t parameters = normal || uniform ? 2 : 1;
    if (stochastic_ && !named)
      fail(fmt::format("its {} needs a distribution in a STOCHASTIC profile: DET, NORM, UNIF or EXP", part));
    next += named ? 1 : 0;
    if (words.size() < next + parameters) {
      fail(fmt::format("no {}; a line is a date and a value, such as \"10.0 0.5\"", part));
    }
    const double first = number(words[next]);
    const double second = parameters == 2 ? number(words[next + 1]) : first;
    next += parameters;
    if (normal || exponential) return {0, unbounded};  // SimGrid aborts on a draw below 0
    return {std::min(first, second), std::max(first, second)};
  }

  double number(const std::string& word) const
  {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    if (end == word.c_str() || *end != '\0' || !std::isfinite(value) || value < 0) {
      fail(fmt::format("\"{}\" is not a non-negative number", word));
    }
    return value;
  }

  void check_loop() const
  {
    if (!loops_ || events_ == 0) return;
    if (stochastic_ && periodicity_ > 0) fail("PERIODICITY cannot be combined with STOCHASTIC; write LOOPAFTER");
    if (periodicity_ > 0 && loop_delay_ > 0) fail("PERIODICITY and LOOPAFTER cannot be combined");
    if (periodicity_ > 0 && periodicity_ < last_date_) {
      fail(fmt::format("PERIODICITY {} is less than the last date, {}", periodicity_, last_date_));
    }
    // A round that takes no time would repeat forever at the same moment.
    if (std::max(periodicity_, last_date_ + loop_delay_) <= 0) fail("repeats every 0 s");
  }

  const std::string& name_;
  int line_;
  bool loops_;
  double periodicity_;
  double loop_delay_ = 0;
  double last_date_ = 0;
  bool stochastic_ = false;
  std::size_t events_ = 0;
  ProfileRange range_;
};

}  // namespace

ProfileRange scan_profile(const std::string& text, const std::string& name, int first_line, double periodicity)
{
  return ProfileScanner(name, first_line, periodicity).scan(text);
}

}  // namespace isobar::sim
