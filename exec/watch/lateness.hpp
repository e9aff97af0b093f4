#pragma once

#include "core/base/clock.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace isobar::exec {

/// Reports once per run, in one line, that steps take more than ten times the predicted time. One case is the mean of
/// the completed steps, once they are late by a second in total; the first step does not count, because a machine warms
/// up in it. The other case is a step under way that is late by `patience`.
class Lateness {
 public:
  using Report = std::function<void(const std::string& line)>;

  /// `predicted`: time of a step; 0 if there is no prediction, and then nothing is reported.
  Lateness(Seconds predicted, Seconds patience, Report report)
      : predicted_(predicted), patience_(patience), report_(std::move(report))
  {
  }

  void step_begins(std::uint64_t step);
  void step_ends();
  /// Checks the step under way. `longest`: the rank that has been doing one thing for longest, or "". Callable from any
  /// thread.
  void look(const std::string& longest);

 private:
  void report_once(const std::string& what, Seconds took, const std::string& why);

  Seconds predicted_;
  Seconds patience_;
  Report report_;
  std::mutex mutex_;
  bool is_reported_ = false;
  bool is_first_ = true;
  std::uint64_t completed_ = 0;  // steps except the first
  Seconds total_;                // of the completed steps
  std::optional<std::uint64_t> under_way_;
  Clock::time_point began_;
};

}  // namespace isobar::exec
