#pragma once

#include "allocators/planners/dtfm_compositions.hpp"
#include "allocators/search_clock.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace isobar::allocators {

/// The stages of a placement by their device classes, in order, and what it costs.
struct StageSequence {
  std::vector<ClassCounts> stages;
  double cost = std::numeric_limits<double>::infinity();
};

/// Relative precision to which a search proves that no placement costs less than its best one.
inline constexpr double proof_precision = 1e-10;

/// Sequences of stages whose gradient syncs are within a limit, as paths over compositions.
///
/// A placement uses each device once. The relaxation charges multipliers for uses instead: a path may use devices any
/// number of times, but for stages of the same composition one after another (a run), of which there are at most as
/// many as the classes have devices for. Its least length, minus the multipliers of all devices, is a bound on PP.
class StagePaths {
 public:
  /// Both must outlive this.
  StagePaths(const DeviceClasses& classes, const Compositions& compositions, std::size_t stages);

  /// The result of a relaxation.
  struct Relaxed {
    double bound = 0;          ///< on PP, of all sequences of the first `count` compositions
    std::vector<double> used;  ///< devices of each kind of classes that the shortest path uses
  };
  /// Relaxes sequences of the first `count` compositions; `multipliers` are of a device of each kind, 0 or more.
  /// O(stages · representatives · count). @throws OutOfLimits when the time is over.
  Relaxed relax(std::size_t count, const std::vector<double>& multipliers, const SearchClock& clock);

  /// Searches all sequences of the first `count` compositions whose cost is below that of `best`, which becomes the
  /// cheapest one found. DP counts as at least `least_sync`. Spends a unit of the clock for each node.
  /// The last relaxation must have been one of as many compositions: its path lengths prune the search.
  /// @throws OutOfLimits
  void search(std::size_t count, double least_sync, SearchClock& clock, StageSequence& best);

 private:
  struct Run {
    std::size_t composition;
    std::size_t length;
  };

  double time_between(std::size_t from, std::size_t to);
  std::vector<std::uint16_t>& row_of(std::size_t representative);
  std::size_t most_in_run(std::size_t composition) const;
  void extend(std::size_t left, double passes, double sync);
  bool is_dominated(std::size_t last, double passes, double sync);
  void close(double passes, double sync);

  double begin(std::size_t stages, std::size_t composition) const
  {
    return begin_[stages][compositions_.representative[composition]];
  }

  const DeviceClasses& classes_;
  const Compositions& compositions_;
  std::size_t stages_;
  std::vector<std::vector<std::size_t>> alike_;   // by representative: the compositions that it stands for
  std::vector<std::vector<std::uint16_t>> rows_;  // by representative: levels of hops to all, or at least that
  std::vector<double> least_onward_;              // by representative: a time that no hop to another is below
  std::vector<double> repeated_;                  // by representative: the time of a hop to the same
  std::vector<double> use_;                       // multipliers of a composition's devices
  std::vector<std::vector<double>> begin_;  // by stages and representative: least length of so many that begin with it
  std::vector<std::vector<double>> after_;  // likewise: of so many after a run of it

  // Of a search:
  std::size_t count_ = 0;
  double least_sync_ = 0;
  SearchClock* clock_ = nullptr;
  StageSequence* best_ = nullptr;
  std::vector<double> multiplier_;               // of a device of each class
  std::vector<std::vector<std::size_t>> order_;  // by stages: compositions, the least begin_ first
  ClassCounts left_;                             // devices of each class
  std::vector<Run> runs_;
  std::map<std::pair<ClassCounts, std::size_t>, std::vector<std::pair<double, double>>> seen_;
};

}  // namespace isobar::allocators
