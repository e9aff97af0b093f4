#include "core/base/progress_line.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <utility>

namespace isobar {

namespace {

double now_s()
{
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

ProgressLine::ProgressLine(std::string what, std::size_t total)
    : what_(std::move(what)), total_(total), started_s_(now_s()), on_terminal_(isatty(STDERR_FILENO) == 1)
{
}

ProgressLine::~ProgressLine()
{
  clear();
}

double ProgressLine::passed_s() const
{
  return now_s() - started_s_;
}

void ProgressLine::done(std::size_t count)
{
  if (count == 0) return;
  const double left_s = passed_s() / static_cast<double>(count) * static_cast<double>(total_ - count);
  show(fmt::format("{} of {}, about {:.0f} s left", count, total_, left_s));
}

void ProgressLine::show(const std::string& text)
{
  constexpr double worth_showing_s = 1;
  if (!on_terminal_ || passed_s() < worth_showing_s) return;
  shown_ = true;
  fmt::print(stderr, "\r\033[K{}: {}", what_, text);
  std::fflush(stderr);
}

void ProgressLine::clear()
{
  if (!shown_.exchange(false)) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
}

}  // namespace isobar
