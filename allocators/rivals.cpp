#include "allocators/rivals.hpp"

#include "allocators/registry.hpp"
#include "schedules/orders/schedule.hpp"

#include <algorithm>
#include <optional>
#include <tuple>

namespace isobar::allocators {

namespace {

/// Whether an allocator makes plans under a schedule.
bool takes(const Allocator& allocator, const ScheduleChoice& schedule)
{
  const bool has_stage_each = schedules::require_schedule(schedule.name).folding == schedules::Folding::OneEach;
  return (has_stage_each || !allocator.needs_stage_each) && (chain_schedule(schedule) || !allocator.needs_chain);
}

/// Objective step, and the formulas.
std::vector<Objective> objectives_of_chains()
{
  std::vector<Objective> objectives = {Objective::Step};
  for (const auto& name : objective_names()) {
    const Objective objective = objective_from_name(name).value();
    if (Goal{objective}.is_formula()) objectives.push_back(objective);
  }
  return objectives;
}

}  // namespace

std::vector<Rival> rivals_of(const std::string& allocator, const Goal& goal)
{
  if (goal.objective == Objective::DtFm) return {};
  const bool divides_operators = has_property(allocator, &Allocator::divides_operators);
  const bool has_replicas = places_replicas(allocator);
  std::vector<const Allocator*> others;
  for (const auto& other : allocators()) {
    if (other.rivalry == Rivalry::None || other.divides_operators != divides_operators) continue;
    if (other.propose != nullptr && !has_replicas) continue;
    if (takes(other, goal.schedule)) others.push_back(&other);
  }
  const auto place_in_order = [](const Allocator* other) {
    return std::tuple(other->propose == nullptr, other->needs_chain, other->rivalry);
  };
  std::stable_sort(others.begin(), others.end(),
                   [&](const Allocator* a, const Allocator* b) { return place_in_order(a) < place_in_order(b); });

  std::vector<Rival> rivals;
  for (const auto* other : others) {
    if (other->name != allocator) rivals.push_back({std::string(other->name), goal});
  }
  if (divides_operators || !chain_schedule(goal.schedule)) return rivals;
  for (const auto objective : objectives_of_chains()) {
    if (objective == goal.objective) continue;
    Goal other_goal = goal;
    other_goal.objective = objective;
    other_goal.communication = Goal::with_defaults(objective).communication;
    for (const auto* other : others) {
      if (other->place == nullptr || other->rivalry != Rivalry::EveryObjective) continue;
      rivals.push_back({std::string(other->name), other_goal});
    }
  }
  return rivals;
}

}  // namespace isobar::allocators
