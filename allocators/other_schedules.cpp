#include "allocators/other_schedules.hpp"

#include "allocators/folding.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/schedule_numbers.hpp"
#include "allocators/search_clock.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/list_scheduler.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>

namespace isobar::allocators {

namespace {

/// Micro-batches of all devices together for which list scheduling takes acceptable time and memory.
constexpr std::uint64_t most_listed_microbatches = 200'000;

/// Work of playing plans with other cuts, in stages and their micro-batches.
constexpr std::uint64_t most_played_passes = 300'000;

/// @throws InputError if list scheduling takes too long.
void require_few_tasks(const Goal& goal, std::size_t devices)
{
  const std::uint64_t most = most_microbatches(goal.schedule, devices);
  if (goal.microbatches <= most) return;
  throw InputError("microbatches",
                   fmt::format("{} on each of {} devices; {} takes at most {} on all devices together; use at most {}, "
                               "or another schedule",
                               goal.microbatches, devices, goal.schedule.name, most_listed_microbatches, most));
}

class PlayedPlans {
 public:
  PlayedPlans(const std::function<Placement(const Problem&)>& place, const Workload& workload, const ChainView& view,
              const Cluster& cluster, const Goal& goal, const SearchLimits& limits)
      : place_(place),
        workload_(workload),
        view_(view),
        cluster_(cluster),
        goal_(goal),
        limits_(limits),
        clock_(limits),
        schedule_(schedules::require_schedule(goal.schedule.name)),
        rules_(limits.rules, workload, cluster),
        cost_(workload, cluster),
        chain_cost_(view.workload, cluster)
  {
  }

  std::vector<Plan> plans()
  {
    const auto possible = possible_parts(schedule_, goal_.schedule);
    for (std::size_t i = 0; i < possible.size() && (plans_.empty() || !clock_.is_over()); ++i) {
      share_of_time_ = 1 / static_cast<double>(possible.size() - i);
      plan_with(possible[i]);
      if (!limits_.start.empty()) {
        add(limits_.start, clock_.is_over() ? Outcome::TimedOut : Outcome::Feasible, possible[i]);
      }
    }
    if (plans_.empty()) return {plan_without_stages()};
    std::stable_sort(plans_.begin(), plans_.end(),
                     [](const Plan& a, const Plan& b) { return *a.objective < *b.objective; });
    if (plans_.size() > limits_.candidates) plans_.resize(limits_.candidates);
    return std::move(plans_);
  }

 private:
  /// The number of devices for which the user gave a warm-up.
  std::optional<std::size_t> given_devices() const
  {
    const auto given = goal_.schedule.numbers.find(warm_up_key);
    const bool is_given = given != goal_.schedule.numbers.end() && !given->second.empty();
    return is_given ? std::optional(given->second.size()) : std::nullopt;
  }

  std::size_t most_devices(std::size_t parts) const
  {
    return std::min(cluster_.devices.size(), chain_cost_.layers() / parts);
  }

  void plan_with(std::size_t parts)
  {
    std::size_t most = given_devices().value_or(most_devices(parts));
    if (most == 0) {
      refuse(Outcome::Infeasible, too_few_layers(parts, 1));
      return;
    }
    const std::size_t before = plans_.size();
    std::vector<std::uint64_t> held = held_by(most, parts);
    std::size_t used = place(parts, held);
    if (plans_.size() == before && chooses_what_stages_hold() && !clock_.is_over()) {
      reason_.clear();  // the next search needs less memory
      used = place(parts, least_held(most));
    }
    while (plans_.size() == before && !given_devices() && most > 1 && !clock_.is_over()) {
      most = (most + 1) / 2;
      if (auto fewer = held_by(most, parts); fewer != held) {
        held = std::move(fewer);
        used = place(parts, held);
      }
    }
    if (plans_.size() == before || used >= most || given_devices() || clock_.is_over()) return;
    if (const auto fewer = held_by(used, parts); fewer != held) place(parts, fewer);
  }

  /// What the stages of a pipeline of at most `devices` devices hold; empty for what they hold under 1f1b.
  std::vector<std::uint64_t> held_by(std::size_t devices, std::size_t parts) const
  {
    if (schedule_.allocator_makes_orders) return {};
    constexpr std::uint64_t never_fits = 1'000'000'000'000;
    auto held =
        held_counts(schedule_, without_chunks(given_part_of(goal_.schedule)), devices, parts, goal_.microbatches);
    // Stages with as many others after them would belong to a longer pipeline.
    if (devices < most_devices(parts) && devices < goal_.microbatches) held.push_back(never_fits);
    return held;
  }

  /// Whether the allocator chooses how many micro-batches a stage holds, so that fewer than those of the schedule will
  /// do.
  bool chooses_what_stages_hold() const { return schedule_.allocator_makes_orders || chooses_warm_up(); }

  bool chooses_warm_up() const
  {
    const auto open = goal_.schedule.numbers.find(warm_up_key);
    return open != goal_.schedule.numbers.end() && open->second.empty();
  }

  /// The least that the stages of a pipeline of at most `devices` devices can hold.
  std::vector<std::uint64_t> least_held(std::size_t devices) const
  {
    if (schedule_.allocator_makes_orders) return {1};
    ScheduleChoice choice = given_part_of(goal_.schedule);
    choice.numbers[warm_up_key] = std::vector<std::uint64_t>(devices, 0);
    return held_counts(schedule_, choice, devices, 1, goal_.microbatches);
  }

  /// Places the chain and adds the plans of the placements; returns the number of devices of the first, or 0.
  std::size_t place(std::size_t parts, const std::vector<std::uint64_t>& held)
  {
    const CostModel cost(view_.workload, cluster_, held);
    Problem problem{cost, goal_, limits_};
    problem.goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
    if (const auto left = clock_.left()) problem.limits.time_limit = share_of_time_ * *left;
    const Placement placement = place_(problem);
    if (placement.stages.empty()) {
      refuse(placement.outcome, placement.reason);
      return 0;
    }
    add(placement.stages, placement.outcome, parts, placement.keeps_counts);
    for (const auto& stages : placement.alternatives) add(stages, Outcome::Feasible, parts);
    return placement.stages.size();
  }

  void add(const std::vector<StagePlacement>& chain, Outcome outcome, std::size_t parts, bool keeps_counts = false)
  {
    if (const auto devices = given_devices(); devices && *devices != chain.size()) {
      other_devices_ = chain.size();
      return;
    }
    const std::size_t ranks = chain.size();
    ScheduleChoice choice = given_part_of(goal_.schedule);
    std::vector<StagePlacement> stages = chain;
    if (schedule_.folding != schedules::Folding::OneEach) {
      Fold how{{},
               schedule_.folding,
               parts,
               parts_in_flight(schedule_, without_chunks(choice), ranks, parts, goal_.microbatches),
               {}};
      for (const auto& [device, first, last] : chain) {
        how.devices.push_back(device);
        if (keeps_counts) how.layers.push_back(last - first + 1);
      }
      if (!folded_.insert({parts, how.devices}).second) return;
      stages = fold(chain_cost_, how);
      if (stages.empty()) {
        refuse(Outcome::Infeasible, too_few_layers(parts, ranks));
        return;
      }
      if (schedule_.takes(chunks_key)) choice.numbers[chunks_key] = {parts};
      if (!keeps_counts) stages = with_moved_cuts(std::move(stages), choice);
    }
    if (!chooses_warm_up()) {
      add_priced(stages, outcome, choice);
      return;
    }
    for (const auto& warm_up : {own_warm_up(ranks), chosen_warm_up(schedule_, chain_cost_, stages, goal_)}) {
      if (!warm_up) continue;
      choice.numbers[warm_up_key] = *warm_up;
      add_priced(stages, outcome, choice);
    }
  }

  /// Moves cuts by a layer while that makes the step shorter as played.
  std::vector<StagePlacement> with_moved_cuts(std::vector<StagePlacement> stages, const ScheduleChoice& choice)
  {
    std::uint64_t plays = most_played_passes / (stages.size() * goal_.microbatches);
    if (plays == 0) return stages;
    Seconds least = played_step(stages, choice);
    bool is_better = true;
    while (is_better) {
      is_better = false;
      for (std::size_t cut = 1; cut < stages.size(); ++cut) {
        for (const bool is_forward : {true, false}) {
          const StagePlacement& shorter = is_forward ? stages[cut] : stages[cut - 1];
          if (shorter.first_layer == shorter.last_layer) continue;
          if (--plays == 0 || clock_.is_over()) return stages;
          auto moved = stages;
          moved[cut].first_layer = is_forward ? stages[cut].first_layer + 1 : stages[cut].first_layer - 1;
          moved[cut - 1].last_layer = moved[cut].first_layer - 1;
          const Seconds step = played_step(moved, choice);
          if (step >= least * (1 - 1e-9)) continue;
          least = step;
          stages = std::move(moved);
          is_better = true;
        }
      }
    }
    return stages;
  }

  /// The step of a placement; infinite if it exceeds a memory or breaks the rules.
  Seconds played_step(const std::vector<StagePlacement>& stages, const ScheduleChoice& choice)
  {
    Plan plan = plan_for(choice);
    plan.stages = plan_stages(cost_, over_layers_of(view_, stages));
    price_by_playing(plan, workload_, cluster_);
    const bool fits = !excess_of_devices(plan, cluster_) && rules_.takes(plan, *plan.objective);
    return fits ? *plan.objective : Seconds(std::numeric_limits<double>::infinity());
  }

  /// The warm-up that the schedule has by itself: the forwards before the first backward of each rank.
  std::optional<std::vector<std::uint64_t>> own_warm_up(std::size_t ranks) const
  {
    const auto orders =
        schedule_.orders(folded_shape(schedule_, ranks, 1, goal_.microbatches), given_part_of(goal_.schedule));
    std::vector<std::uint64_t> numbers;
    const auto opcode = schedule_.splits_backward ? Opcode::BackwardInput : Opcode::Backward;
    for (const auto& order : orders) numbers.push_back(order.position_of({opcode, 0, 0}) - 1);
    return numbers;
  }

  void add_priced(const std::vector<StagePlacement>& stages, Outcome outcome, const ScheduleChoice& choice)
  {
    Plan plan = plan_for(choice);
    // Optimal is what the search proved of its chain, not of this plan.
    plan.outcome = outcome == Outcome::TimedOut ? Outcome::TimedOut : Outcome::Feasible;
    const auto placed = over_layers_of(view_, stages);
    plan.stages = plan_stages(cost_, placed);
    if (!seen_.insert(identity_of(plan)).second) return;
    if (schedule_.allocator_makes_orders) {
      price_with_orders(plan, placed);
    } else {
      price_by_playing(plan, workload_, cluster_);
    }
    if (auto excess = excess_of_devices(plan, cluster_)) {
      refuse(Outcome::Infeasible, std::move(excess->reason));
    } else if (rules_.takes(plan, *plan.objective)) {
      plans_.push_back(std::move(plan));
    }
  }

  /// Prices a plan with orders for its times: those of list scheduling, or of a zero-bubble schedule that fits,
  /// whichever step is the shortest. So it is never longer than those of zero-bubble-h1, with its own warm-up or one
  /// for the delays, and of zero-bubble-h2.
  void price_with_orders(Plan& plan, const std::vector<StagePlacement>& stages) const
  {
    require_few_tasks(goal_, stages.size());
    auto listed = schedules::list_schedule(pipeline_times(cost_, stages, goal_)).orders;
    for (auto& order : listed) order = with_loops(listed_tasks(order));
    set_orders(plan, listed);
    price_by_playing(plan, workload_, cluster_);
    std::vector<ScheduleChoice> others = {{"zero-bubble-h1"}, {"zero-bubble-h2"}};
    const auto& zero_bubble = schedules::require_schedule(others.front().name);
    const auto warm_up = chosen_warm_up(zero_bubble, cost_, stages, goal_);
    if (warm_up) others.push_back({others.front().name, {{warm_up_key, *warm_up}}});
    for (const auto& choice : others) {
      Plan other = plan;
      set_orders(other, schedules::require_schedule(choice.name).orders(schedules::shape_of(plan), choice));
      price_by_playing(other, workload_, cluster_);
      if (*other.objective < *plan.objective && !excess_of_devices(other, cluster_)) plan = std::move(other);
    }
  }

  /// `orders` are by rank.
  static void set_orders(Plan& plan, const std::vector<Order>& orders)
  {
    const auto devices = devices_of(plan);
    for (std::size_t rank = 0; rank < devices.size(); ++rank) plan.goal.schedule.orders[devices[rank]] = orders[rank];
  }

  Plan plan_for(const ScheduleChoice& choice) const
  {
    Plan plan;
    plan.goal = goal_;
    plan.goal.schedule = choice;
    plan.recompute = workload_.recompute;
    plan.data_server = cluster_.data_server;
    return plan;
  }

  /// Identifies a plan among those of one goal.
  static std::string identity_of(const Plan& plan)
  {
    std::string text = text_of(plan.goal.schedule);
    for (const auto& stage : plan.stages) text += fmt::format("\n{} {}", stage.last_layer, stage.device());
    return text;
  }

  /// Keeps the first reason: later searches are for fewer devices than the allocator would use.
  void refuse(Outcome outcome, std::string reason)
  {
    if (outcome_ != Outcome::TimedOut) outcome_ = outcome;
    if (reason_.empty()) reason_ = std::move(reason);
  }

  std::string too_few_layers(std::size_t parts, std::size_t devices) const
  {
    const std::size_t layers = chain_cost_.layers();
    if (devices == 1) {
      return fmt::format(
          "{} stages on a device need as many layers that can be cut apart, and there {}; use another "
          "schedule",
          parts, layers == 1 ? "is 1" : fmt::format("are {}", layers));
    }
    return fmt::format(
        "{} devices with {} stages each need {} layers that can be cut apart, and there are {}; leave "
        "devices out with --without",
        devices, parts, devices * parts, layers);
  }

  Plan plan_without_stages() const
  {
    if (other_devices_ && reason_.empty()) {
      throw InputError("schedule",
                       fmt::format("{} of warm_up, and the placement has {}; give one for each, or auto",
                                   counted(given_devices().value_or(0), "number"), counted(*other_devices_, "device")));
    }
    Plan plan = plan_for(given_part_of(goal_.schedule));
    plan.outcome = outcome_;
    plan.reason = rules_.has_refused() ? rules_.reason() : reason_;
    if (rules_.has_refused()) return plan;
    // Stages beyond the numbers were made never to fit, so the reason of the search would mislead.
    const auto given = given_devices();
    if (outcome_ == Outcome::Infeasible && given && *given < most_devices(1)) {
      plan.reason = fmt::format(
          "warm_up is for {} of {} devices, and no placement on so few fits; give a number for "
          "each device, or auto",
          *given, most_devices(1));
    }
    return plan;
  }

  static ScheduleChoice without_chunks(ScheduleChoice choice)
  {
    choice.numbers.erase(chunks_key);  // the shape has as many
    return choice;
  }

  const std::function<Placement(const Problem&)>& place_;
  const Workload& workload_;
  const ChainView& view_;
  const Cluster& cluster_;
  const Goal& goal_;
  const SearchLimits& limits_;
  SearchClock clock_;
  double share_of_time_ = 1;  // of what is left of the time limit, for one search
  const schedules::Schedule& schedule_;
  RuleCheck rules_;
  CostModel cost_;
  CostModel chain_cost_;
  std::vector<Plan> plans_;
  std::set<std::string> seen_;
  std::set<std::pair<std::size_t, std::vector<std::size_t>>> folded_;  // parts and devices, by rank
  Outcome outcome_ = Outcome::Infeasible;                              // of searches without a plan
  std::string reason_;
  std::optional<std::size_t> other_devices_;
};

}  // namespace

void require_plannable(const Goal& goal, const Allocator* allocator, const std::vector<Allocator>& all)
{
  const auto& schedule = schedules::require_schedule(goal.schedule);
  if (chain_schedule(goal.schedule)) return;
  const std::string text = shown(text_of(goal.schedule));
  if (allocator != nullptr && allocator->divides_operators) return;
  if (schedule.folding == schedules::Folding::Any && !schedule.takes_orders) {
    std::vector<std::string_view> names;
    for (const auto& other : all) {
      if (other.divides_operators) names.push_back(other.name);
    }
    throw InputError("schedule", fmt::format("{} is for devices that divide operators; use allocator {}, or another "
                                             "schedule",
                                             text, fmt::join(names, ", ")));
  }
  if (schedule.folding == schedules::Folding::Any) {
    throw InputError("schedule", fmt::format("{} has the orders of one plan; allocators place for the others", text));
  }
  const bool divides_ends = schedule.folding == schedules::Folding::DividedEnds;
  if (divides_ends && (allocator == nullptr || !allocator->divides_ends)) {
    std::vector<std::string_view> names;
    for (const auto& other : all) {
      if (other.divides_ends) names.push_back(other.name);
    }
    throw InputError("schedule",
                     fmt::format("{} is for devices that divide the first and the last layer; use allocator "
                                 "{}, or another schedule",
                                 text, fmt::join(names, ", ")));
  }
  if (goal.is_formula()) {
    throw InputError("objective", fmt::format("{} is a formula for the schedules sequential, gpipe and 1f1b; use step "
                                              "under {}",
                                              name_of(goal.objective), text));
  }
  const bool has_stage_each = schedule.folding == schedules::Folding::OneEach;
  if (allocator != nullptr && allocator->needs_stage_each && !has_stage_each) {
    std::vector<std::string_view> others;
    for (const auto& other : schedules::schedules()) {
      if (other.folding == schedules::Folding::OneEach && !other.takes_orders) others.push_back(other.name);
    }
    throw InputError("schedule", fmt::format("{} gives a device several stages; allocator {} takes {}", schedule.name,
                                             allocator->name, fmt::join(others, ", ")));
  }
  if (allocator == nullptr || !allocator->needs_chain) return;
  std::vector<std::string_view> others;
  for (const auto& other : all) {
    if (other.needs_chain || other.uses_machines || other.divides_operators) continue;
    if (has_stage_each || !other.needs_stage_each) others.push_back(other.name);
  }
  throw InputError("allocator", fmt::format("{} knows the schedules sequential, gpipe and 1f1b; use {} under {}",
                                            allocator->name, fmt::join(others, ", "), text));
}

std::uint64_t most_microbatches(const ScheduleChoice& schedule, std::size_t devices)
{
  const bool is_listed = schedules::require_schedule(schedule.name).allocator_makes_orders;
  return is_listed ? most_listed_microbatches / devices : most_microbatches_by_recurrence;
}

std::vector<Plan> plans_by_playing(const std::function<Placement(const Problem&)>& place, const Workload& workload,
                                   const ChainView& view, const Cluster& cluster, const Goal& goal,
                                   const SearchLimits& limits)
{
  return PlayedPlans(place, workload, view, cluster, goal, limits).plans();
}

}  // namespace isobar::allocators
