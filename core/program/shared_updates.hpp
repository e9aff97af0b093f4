#pragma once

#include "core/program/intervals.hpp"

#include <cstddef>
#include <limits>
#include <vector>

namespace isobar {

/// Updates of several ranks on the processor of one machine, in the order of time. Each takes a core at most, and all
/// get equal parts of the cores. Times are in seconds. Deterministic.
class SharedUpdates {
 public:
  /// A core does a second of an update each second, and `busy_rate` of it during the intervals `busy`, which must
  /// outlive this object.
  SharedUpdates(double busy_rate, std::size_t cores, const std::vector<Interval>& busy)
      : busy_rate_(busy_rate), cores_(static_cast<double>(cores)), busy_(busy)
  {
  }

  /// Lets an update that takes `seconds` alone begin at a time that is not before the last one of advance().
  void begin(std::size_t owner, double time, double seconds);
  /// When the next update begins or ends; infinite without one. O(updates under way + intervals).
  double next() const;
  /// Follows the updates until next(). @returns the owners of those that have ended, until the next call. They may be
  /// none.
  const std::vector<std::size_t>& advance();
  double now() const { return now_; }

 private:
  struct Update {
    std::size_t owner = 0;
    double time = 0;  // when it begins
    double left = 0;
  };

  /// The part of a core that each update under way has.
  double share() const;
  double next_begin() const;
  double next_end() const;
  double least_left() const;

  double busy_rate_;
  double cores_;
  const std::vector<Interval>& busy_;
  std::vector<Update> waiting_;
  std::vector<Update> under_way_;
  std::vector<std::size_t> ended_;
  double now_ = 0;
};

}  // namespace isobar
