#pragma once

#include "allocators/plan_rules.hpp"
#include "allocators/share_rule.hpp"
#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {
struct ChainView;
}

namespace isobar::allocators {

/// The shape of a uniform grid of devices, as far as it is fixed.
struct GridShape {
  std::optional<std::uint64_t> pipeline = {};      ///< devices of a pipeline
  std::optional<std::uint64_t> replicas = {};      ///< pipelines
  std::optional<std::uint64_t> tensor = {};        ///< devices that divide each layer
  ShardGrid::Form splits = ShardGrid::Form::OneD;  ///< how they divide it
  std::optional<std::uint64_t> experts = {};       ///< neighbouring replicas that divide experts; the workload's, then
  bool any_context = false;                        ///< those that divide sequences, too, may be any number
};

/// Limits and options of a search. Work is counted in the allocator's own units (nodes, sweeps, iterations), so that
/// `budget` gives the same answer on every machine; `time_limit` is for people.
struct SearchLimits {
  std::optional<std::uint64_t> budget;
  std::optional<Seconds> time_limit;
  std::uint64_t seed = 1;
  /// Stages from which allocators that improve plans start, with the workload's layer numbers. If empty, they choose a
  /// start.
  std::vector<StagePlacement> start = {};
  /// A plan whose devices have several stages, or whose stages have several devices. Allocators that improve plans then
  /// move its cuts alone (moved_cuts.hpp).
  std::optional<Plan> start_plan = {};
  /// Whether allocators that improve plans minimise the step at the end of their search, whatever the objective.
  bool polish = false;
  /// Number of placements to return (allocate_candidates), 1 to most_candidates; more than 1 only with objective
  /// `step`.
  std::size_t candidates = 1;
  /// For allocators that take a grid's shape.
  GridShape grid = {};
  /// For allocators whose plans have any shape: most pipelines, and most devices that divide a layer.
  std::optional<std::uint64_t> most_replicas = {};
  std::optional<std::uint64_t> most_tensor = {};
  /// For allocators that take it: how many layers of a window stay on the device.
  std::optional<std::uint64_t> window = {};
  /// For allocators that take it: whether stages that do not fit on their devices may pass through them.
  bool offload = false;
  /// Whether all layers may recompute their activations, of a workload that recomputes none. Not for allocators that
  /// use machines.
  bool chooses_recomputation = false;
  /// For allocators that take it: the shares of devices.
  ShareRule shares = ShareRule::Best;
  /// Of software that is to take the plan; none: any plan.
  std::optional<PlanRules> rules = {};
};
/// Largest value of SearchLimits::candidates. Every candidate is simulated, so more would take longer than a better
/// search.
inline constexpr std::size_t most_candidates = 64;

/// The problem that an allocator solves: place the chain of `cost.workload()` on `cost.cluster()`.
struct Problem {
  const CostModel& cost;  ///< of a chain: allocate() cuts other graphs at their articulation points
  Goal goal;              ///< under a ChainSchedule; allocate() makes plans under other schedules from its placements
  SearchLimits limits;
};

/// The answer of an allocator.
struct Placement {
  Outcome outcome = Outcome::Feasible;
  std::vector<StagePlacement> stages = {};      ///< in chain order; none when infeasible
  std::string reason = {};                      ///< when infeasible
  std::optional<Seconds> objective_bound = {};  ///< where the allocator proves more than bounds.hpp does
  Certificate certificate = {};                 ///< the proof of objective_bound
  /// Other placements that fit, best first, without duplicates: at most SearchLimits::candidates - 1, and only for
  /// objective `step`.
  std::vector<std::vector<StagePlacement>> alternatives = {};
  bool keeps_counts = false;  ///< whether each device keeps its number of layers where it has several stages
};

/// The problem of an allocator whose plans may have replicas of stages.
struct HybridProblem {
  const Workload& workload;
  const ChainView& view;  ///< of the workload: where its layers may be cut, and SearchLimits::rules let stages begin
  const Cluster& cluster;
  Goal goal;  ///< objective step or dtfm
  SearchLimits limits;
};

/// The answer of such an allocator: plans with stages and the goal's schedule with all its numbers, without claims
/// except, where the allocator proves one for objective dtfm, a bound and its certificate. The registry prices them,
/// drops those that exceed a memory and sorts the others.
struct Proposals {
  std::vector<Plan> plans;
  std::string reason = {};    ///< if there are none
  bool is_cut_short = false;  ///< whether a limit ended the search: the plans are those so far
};

/// Whether `isobar plan --simulate` also simulates the plans of an allocator that the user does not name (rivals.hpp).
enum class Rivalry : std::uint8_t {
  None,
  SameGoal,       ///< its plans for the goal
  EveryObjective  ///< and, of an allocator that places chains, those for the other objectives of chains
};

/// One way to place layers, registered in registry.cpp. It has either `place` or `propose`.
struct Allocator {
  std::string_view name;
  std::string_view problem;    ///< what it solves
  std::string_view guarantee;  ///< how good its answer is
  std::string_view cost;       ///< time and memory, in layers L and devices D
  std::string_view source;
  Placement (*place)(const Problem& problem) = nullptr;
  Proposals (*propose)(const HybridProblem& problem) = nullptr;
  bool takes_grid = false;         ///< honours the pipeline and replicas of SearchLimits::grid
  bool takes_shards = false;       ///< honours its tensor
  bool takes_splits = false;       ///< honours its splits
  bool takes_context = false;      ///< places the parts of a workload whose sequences are divided (with_context)
  bool takes_experts = false;      ///< likewise of one whose experts are divided (with_experts); is asked for each of
                                   ///< both that SearchLimits::grid leaves open (variants.hpp)
  bool limits_degrees = false;     ///< honours SearchLimits::most_replicas and most_tensor
  bool uses_machines = false;      ///< places layers on one device and its machine, once a step and recomputed
  bool takes_window = false;       ///< honours SearchLimits::window
  bool takes_offload = false;      ///< honours SearchLimits::offload
  bool takes_share_rule = false;   ///< honours SearchLimits::shares
  bool divides_operators = false;  ///< divides the operators of a workload that lists them; others take no such one
  bool divides_ends = false;       ///< places under schedules whose devices divide the first and the last layer
  bool is_sequential = false;      ///< plans under schedule sequential by default, not under duplex
  bool improves_plans = false;     ///< honours SearchLimits::start and polish
  bool needs_chain = false;        ///< refuses schedules without a recurrence, about which it could prove nothing
  bool needs_stage_each = false;   ///< refuses schedules with several stages on a device
  Rivalry rivalry = Rivalry::None;
  /// Largest number of devices. Larger clusters are refused, because a search over them would exceed its limits or the
  /// memory.
  std::size_t most_devices = std::numeric_limits<std::size_t>::max();
  /// Largest product of layers and devices, likewise.
  std::size_t most_pairs = std::numeric_limits<std::size_t>::max();
};

}  // namespace isobar::allocators
