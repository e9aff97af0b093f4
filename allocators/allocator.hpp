#pragma once

#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::allocators {

/// How far a search may go. Work is counted in the allocator's own units (nodes, sweeps, iterations), so that `budget`
/// gives the same answer on every machine; `time_limit` is for people.
struct SearchLimits {
  std::optional<std::uint64_t> budget;
  std::optional<Seconds> time_limit;
  std::uint64_t seed = 1;
  /// Where allocators that improve plans begin, in the layers of the workload; none: where they like.
  std::vector<StagePlacement> start = {};
  /// Allocators that improve plans judge the last moves by the schedule's exact recurrence.
  bool polish = false;
  /// How many placements are wanted (allocate_candidates), 1 to most_candidates. More than one with objective `step`
  /// alone.
  std::size_t candidates = 1;
};
/// Each candidate is simulated, so more would take longer than a better search.
inline constexpr std::size_t most_candidates = 64;

/// What an allocator is asked: place the chain of `cost.workload()` on `cost.cluster()`.
struct Problem {
  const CostModel& cost;  ///< over a chain: allocate() cuts other graphs at their articulation points
  Goal goal;
  SearchLimits limits;
};

/// What an allocator answers.
struct Placement {
  Outcome outcome = Outcome::Feasible;
  std::vector<StagePlacement> stages = {};      ///< in chain order; none when infeasible
  std::string reason = {};                      ///< when infeasible
  std::optional<Seconds> objective_bound = {};  ///< where the allocator proves more than bounds.hpp does
  Certificate certificate = {};                 ///< how
  /// Other placements that fit, best first, each once: at most SearchLimits::candidates - 1, where the allocator found
  /// so many and the objective is `step`.
  std::vector<std::vector<StagePlacement>> alternatives = {};
};

/// One way to place layers; registered in registry.cpp.
struct Allocator {
  std::string_view name;
  std::string_view problem;    ///< what it solves
  std::string_view guarantee;  ///< what its answer is worth
  std::string_view cost;       ///< time and memory, in layers L and devices D
  std::string_view source;
  Placement (*place)(const Problem& problem);
  bool improves_plans = false;  ///< heeds SearchLimits::start and polish
  /// Clusters of more are refused: a search over them would not heed its limits, or not have the memory.
  std::size_t most_devices = std::numeric_limits<std::size_t>::max();
  /// The same of layers x devices.
  std::size_t most_pairs = std::numeric_limits<std::size_t>::max();
};

}  // namespace isobar::allocators
