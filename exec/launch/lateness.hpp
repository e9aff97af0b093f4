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

/// Says in one line, once in a run, that its steps take more than ten times what was predicted: the mean of those that
/// have ended, but for the first, in which a machine warms up, once they are late by a second together; or a step under
/// way, when it is late by `patience`.
class Lateness {
 public:
  using Say = std::function<void(const std::string& line)>;

  /// `predicted`: the time of a step; 0 where nothing was, and nothing is said.
  Lateness(Seconds predicted, Seconds patience, Say say)
      : predicted_(predicted), patience_(patience), say_(std::move(say))
  {
  }

  void step_begins(std::uint64_t step);
  void step_ends();
  /// From any thread: of the step under way. `longest`: who has been at one thing for longest, or "".
  void look(const std::string& longest);

 private:
  void say_once(const std::string& what, Seconds took, const std::string& why);

  Seconds predicted_;
  Seconds patience_;
  Say say_;
  std::mutex mutex_;
  bool is_said_ = false;
  bool is_first_ = true;
  std::uint64_t ended_ = 0;  // but for the first
  Seconds together_;         // all of them
  std::optional<std::uint64_t> under_way_;
  Clock::time_point began_;
};

}  // namespace isobar::exec
