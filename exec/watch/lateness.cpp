#include "exec/watch/lateness.hpp"

#include <fmt/format.h>

#include <utility>

namespace isobar::exec {

namespace {

constexpr double times_late = 10;
constexpr Seconds least_late{1};

}  // namespace

void Lateness::step_begins(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  under_way_ = step;
  began_ = Clock::now();
}

void Lateness::step_ends()
{
  const std::lock_guard lock(mutex_);
  under_way_.reset();
  if (std::exchange(is_first_, false)) return;
  total_ += time_since(began_);
  ++completed_;
  const auto steps = static_cast<double>(completed_);
  const Seconds late = total_ - steps * predicted_;
  if (total_ <= times_late * steps * predicted_ || late < least_late) return;
  report_once(completed_ == 1 ? "the second step" : fmt::format("each of {} steps after the first", completed_),
              total_ / steps, "");
}

void Lateness::look(const std::string& longest)
{
  const std::lock_guard lock(mutex_);
  if (!under_way_) return;
  const Seconds took = time_since(began_);
  if (took <= times_late * predicted_ + patience_) return;
  report_once(fmt::format("step {}, still under way,", *under_way_), took, longest.empty() ? "" : "; " + longest);
}

void Lateness::report_once(const std::string& what, Seconds took, const std::string& why)
{
  if (predicted_ <= Seconds(0) || std::exchange(is_reported_, true)) return;
  report_(fmt::format("{} took {}, {:.0f} times the {:.3g} s that the plan predicts{}", what, in_seconds(took),
                      took / predicted_, predicted_.value, why));
}

}  // namespace isobar::exec
