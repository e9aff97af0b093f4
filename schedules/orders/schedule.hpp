#pragma once

#include "core/order/order.hpp"
#include "core/order/schedule_choice.hpp"
#include "core/plan/plan.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::schedules {

/// The pipeline whose computations a schedule orders.
struct PipelineShape {
  std::vector<std::string> devices;        ///< names, by rank
  std::vector<std::size_t> rank_of_stage;  ///< in chain order; part k of a rank is the k-th of its stages
  std::uint64_t microbatches = 1;
  /// By stage, the ranks that divide it, where ranks divide some stages and have others alone; else empty. Part k of a
  /// rank is then the k-th stage that it has or divides, and `rank_of_stage` has the first rank of each stage.
  std::vector<std::vector<std::size_t>> ranks_of_stage = {};

  std::size_t ranks() const { return devices.size(); }
  std::size_t stages() const { return rank_of_stage.size(); }
  /// The ranks that compute a stage.
  std::vector<std::size_t> ranks_of(std::size_t stage) const
  {
    return ranks_of_stage.empty() ? std::vector{rank_of_stage.at(stage)} : ranks_of_stage.at(stage);
  }
};

/// The shape of a plan with stages. Ranks are its devices, numbered by their first appearance in the stages.
PipelineShape shape_of(const Plan& plan);

/// The stages of each rank, in chain order: stage `stages_by_rank(shape)[rank][part]` is that part of the rank.
std::vector<std::vector<std::size_t>> stages_by_rank(const PipelineShape& shape);

/// How the stages of a chain fold onto p devices.
enum class Folding : std::uint8_t {
  OneEach,      ///< stage s on device s
  RoundRobin,   ///< stage s on device s mod p, two or more on each
  V,            ///< stages s and 2p-1-s on device s
  DividedEnds,  ///< stages 0 and p+1 are divided among all devices, and stage s is on device s-1
  Any           ///< as the plan has it
};

/// The device of a stage when a chain folds onto `ranks` devices, of a divided one the first. @throws std::logic_error
/// for Folding::Any and for a stage that the folding has not.
std::size_t rank_of_stage(Folding folding, std::size_t stage, std::size_t ranks);

/// One way to order the computations of a pipeline, registered in registry.cpp.
struct Schedule {
  std::string_view name;
  std::string_view summary;                      ///< one line, for lists
  std::string_view source;                       ///< author, year
  std::array<std::string_view, 3> numbers = {};  ///< keys of ScheduleChoice::numbers that it takes; unused ones are ""
  bool takes_orders = false;                     ///< whether it takes ScheduleChoice::orders
  bool allocator_makes_orders = false;           ///< those orders, for the times of a placement; otherwise a user does
  Folding folding = Folding::OneEach;
  bool splits_backward = false;  ///< into BackwardInput and BackwardWeight; a schedule that takes orders may do either
  /// Makes the orders, by rank, of a shape and a choice that `orders` has checked.
  std::vector<Order> (*make_orders)(const PipelineShape& shape, const ScheduleChoice& choice);

  /// True if ScheduleChoice::numbers may have this key.
  bool takes(std::string_view number) const;

  /// The orders of the ranks, by rank; those of registered schedules that take no orders have O(stages) slots a rank,
  /// however many micro-batches there are. A program that links this library may define a Schedule of its own and need
  /// not register it; `faults_of_orders` (listed.hpp) checks its orders.
  /// @throws InputError for a choice that the schedule does not take, a number that an allocator should have chosen,
  /// stages that do not fold as the schedule needs, and numbers or orders under which devices wait for each other.
  std::vector<Order> orders(const PipelineShape& shape, const ScheduleChoice& choice) const;
};

/// Returns all schedules, sorted by name.
const std::vector<Schedule>& schedules();
/// The schedule with that name; nullptr for an unknown name.
const Schedule* find_schedule(std::string_view name);
/// The schedule with that name. @throws InputError for an unknown name, with the nearest one or all.
const Schedule& require_schedule(std::string_view name);
/// The schedule of a choice, which takes its numbers and orders; their values need a pipeline and are not checked.
/// Orders that an allocator makes may be missing.
/// @throws InputError for an unknown name, without offering those that need orders, and as Schedule::orders does for
/// numbers and orders.
const Schedule& require_schedule(const ScheduleChoice& choice);

/// The most micro-batches of a part that are forwarded and not yet taken back, by a Backward or BackwardWeight, at any
/// time of an order; without a part, of all parts together. O(slots).
std::uint64_t most_in_flight(const Order& order, std::optional<std::uint32_t> part = std::nullopt);

}  // namespace isobar::schedules
