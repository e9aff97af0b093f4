#include "cli/frameworks/megatron_layout.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <utility>

namespace isobar::cli {

namespace {

bool is_letter(char c)
{
  return layout_letters.find(c) != std::string_view::npos;
}

bool is_digit(char c)
{
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

class LayoutParser {
 public:
  LayoutParser(std::string_view layout, const std::string& place) : place_(place)
  {
    for (std::size_t i = 0; i < layout.size(); ++i) {
      if (layout[i] != ',') text_.emplace_back(layout[i], i + 1);
    }
    end_ = layout.size() + 1;
  }

  std::string written_out()
  {
    while (next_ < text_.size()) {
      if (peek() == '(') {
        append(group());
      } else {
        append(item());
      }
    }
    return std::move(text_written_);
  }

 private:
  char peek() const { return next_ < text_.size() ? text_[next_].first : '\0'; }
  std::size_t column() const { return next_ < text_.size() ? text_[next_].second : end_; }

  [[noreturn]] void refuse(std::size_t column, const std::string& what) const
  {
    throw InputError(place_, fmt::format("column {}: {}", column, what));
  }

  /// A letter or "|", with its repetition.
  std::string item()
  {
    const char c = peek();
    if (c != '|' && !is_letter(c)) {
      const char text[] = {c, '\0'};
      const std::string_view what = c == '*'   ? "repeats nothing; write a letter, a | or a group before it"
                                    : c == ')' ? "ends no group; leave it out, or write ( before"
                                               : "is no item; write E, t, m, L, |, *n or a group (…)*n";
      refuse(column(), fmt::format("{} {}", in_quotes(text), what));
    }
    ++next_;
    return std::string(peek() == '*' ? repetition() : 1, c);
  }

  std::string group()
  {
    const std::size_t begin = column();
    ++next_;
    std::string inner;
    const std::size_t first = next_;
    while (next_ < text_.size() && peek() != ')') {
      if (peek() == '(')
        refuse(column(), "a group within a group, which Megatron does not read; write out one of them");
      inner += item();
      limit(inner.size());
    }
    if (next_ == text_.size()) refuse(begin, "the group has no end; write )*n");
    if (next_ == first) refuse(begin, "the group is empty; leave it out");
    ++next_;
    if (peek() != '*') refuse(column(), "a group without a number; write *n after it");
    const std::size_t times = repetition();
    limit(text_written_.size() + times * inner.size());
    std::string all;
    for (std::size_t i = 0; i < times; ++i) all += inner;
    return all;
  }

  /// "*n".
  std::size_t repetition()
  {
    const std::size_t begin = column();
    ++next_;
    if (!is_digit(peek())) refuse(begin, "* without a number; write how many times");
    std::size_t times = 0;
    for (; is_digit(peek()); ++next_) {
      times = times * 10 + static_cast<std::size_t>(peek() - '0');
      limit(times);
    }
    if (peek() == '*') refuse(column(), "a second number; write the product of both");
    return times;
  }

  void append(const std::string& more)
  {
    limit(text_written_.size() + more.size());
    text_written_ += more;
  }

  void limit(std::size_t items) const
  {
    if (items > most_layout_items) {
      throw InputError(place_, fmt::format("has more than {} items; write fewer", most_layout_items));
    }
  }

  const std::string& place_;
  std::vector<std::pair<char, std::size_t>> text_;  // without commas; with columns
  std::size_t end_ = 1;
  std::size_t next_ = 0;
  std::string text_written_;
};

std::string repeated(const std::string& what, std::size_t times)
{
  return times == 1 ? what : fmt::format("{}*{}", what, times);
}

/// The letters of a stage, with repetitions.
std::string text_of_stage(const std::string& letters)
{
  std::string text;
  for (std::size_t begin = 0; begin < letters.size();) {
    const std::size_t other = letters.find_first_not_of(letters[begin], begin);
    const std::size_t end = std::min(other, letters.size());
    text += repeated(letters.substr(begin, 1), end - begin);
    begin = end;
  }
  return text;
}

}  // namespace

std::vector<std::string> stages_of_layout(std::string_view layout, const std::string& place)
{
  if (layout.empty()) throw InputError(place, "is empty; write a layout such as Et*4|t*4L");
  const std::string text = LayoutParser(layout, place).written_out();
  std::vector<std::string> stages(1);
  for (const char c : text) {
    if (c == '|') {
      stages.emplace_back();
    } else {
      stages.back() += c;
    }
  }
  return stages;
}

std::string layout_of(const std::vector<std::string>& stages)
{
  std::string text;
  for (std::size_t begin = 0; begin < stages.size();) {
    std::size_t end = begin + 1;
    while (end < stages.size() && stages[end] == stages[begin]) ++end;
    // The last stage has no "|" after it.
    const std::size_t ended = std::min(end, stages.size() - 1) - begin;
    const std::string stage = text_of_stage(stages[begin]);
    if (ended > 1) {
      text += fmt::format("({}|)*{}", stage, ended);
    } else if (ended == 1) {
      text += stage + "|";
    }
    if (end == stages.size()) text += stage;
    begin = end;
  }
  return text;
}

}  // namespace isobar::cli
