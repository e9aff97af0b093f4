#include "schedules/orders/schedule.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

namespace isobar::schedules {

namespace {

constexpr std::string_view place = "schedule";

/// @throws InputError if the schedule does not take the numbers of a choice, whatever the stages are.
void check_numbers(const Schedule& schedule, const ScheduleChoice& choice)
{
  for (const auto& [key, values] : choice.numbers) {
    if (schedule.takes(key)) {
      const auto large =
          std::find_if(values.begin(), values.end(), [](auto value) { return value > most_repetitions; });
      if (large != values.end()) {
        throw InputError(std::string(place),
                         fmt::format("{}: {} is above {}; use less", key, *large, most_repetitions));
      }
      const bool is_one = values.size() == 1;
      if (key == "chunks" && !values.empty() && !(is_one && values.front() >= 2)) {
        throw InputError(std::string(place),
                         fmt::format("{}: chunks is one number, at least 2", shown(text_of(choice))));
      }
      if (key == overlap_experts_key && !(is_one && values.front() == 1)) {
        throw InputError(std::string(place), fmt::format("{}: overlap_experts is 1; leave it out for passes in turn",
                                                         shown(text_of(choice))));
      }
      if (key == "warm_up" && values.empty() && overlaps_experts(choice)) {
        throw InputError(std::string(place),
                         fmt::format("{}: warm_up is chosen for passes in turn; give numbers with overlap_experts, or "
                                     "leave it out",
                                     shown(text_of(choice))));
      }
      if (key == "group" && !(is_one && values.front() >= 1)) {
        throw InputError(std::string(place),
                         fmt::format("{}: group is one number, at least that of the devices", shown(text_of(choice))));
      }
      continue;
    }
    std::vector<std::string_view> taken;
    std::copy_if(schedule.numbers.begin(), schedule.numbers.end(), std::back_inserter(taken),
                 [](std::string_view number) { return !number.empty(); });
    throw InputError(std::string(place),
                     fmt::format("{} takes no {}; {}", schedule.name, shown(key),
                                 taken.empty() ? "leave it out" : fmt::format("it takes {}", fmt::join(taken, ", "))));
  }
}

/// @throws InputError if a choice lacks the orders of the schedule, or has some that it does not take.
void check_orders(const Schedule& schedule, const ScheduleChoice& choice)
{
  if (schedule.takes_orders != choice.orders.empty()) return;
  const std::string_view what = !schedule.takes_orders ? "takes no orders; use listed, or leave them out"
                                : schedule.allocator_makes_orders
                                    ? "has no orders; make a plan with isobar plan"
                                    : "has no orders; make a plan with isobar schedule import";
  throw InputError(std::string(place), fmt::format("{} {}", schedule.name, what));
}

/// The schedule with that name. @throws InputError for an unknown name, with the nearest of those offered, or all.
template <typename IsOffered>
const Schedule& find_or_offer(std::string_view name, IsOffered is_offered)
{
  if (const Schedule* schedule = find_schedule(name)) return *schedule;
  std::vector<std::string> names;
  for (const auto& known : schedules()) {
    if (is_offered(known)) names.emplace_back(known.name);
  }
  const std::string nearest = nearest_word(std::string(name), names);
  throw InputError(std::string(place), fmt::format("{} is not known; {}", in_quotes(name),
                                                   nearest.empty() ? fmt::format("use {}", fmt::join(names, ", "))
                                                                   : fmt::format("did you mean {}?", nearest)));
}

/// "interleaved, listed, zero-bubble-v": those under which a device has several stages.
std::string names_with_several_stages()
{
  std::vector<std::string_view> names;
  for (const auto& known : schedules()) {
    const bool is_for_operators = known.folding == Folding::Any && !known.takes_orders;
    const bool has_divided_stages = known.folding == Folding::DividedEnds;
    if (known.folding != Folding::OneEach && !is_for_operators && !has_divided_stages) names.push_back(known.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// "1f1b-interlaced, 1f1b-vocab-1, listed": those under which devices divide some stages and have others alone.
std::string names_with_divided_stages()
{
  std::vector<std::string_view> names;
  for (const auto& known : schedules()) {
    const bool is_users = known.takes_orders && !known.allocator_makes_orders;
    if (known.folding == Folding::DividedEnds || is_users) names.push_back(known.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Checks that all ranks divide the first and the last stage, and that each has one of the others.
void check_divided_ends(const Schedule& schedule, const PipelineShape& shape)
{
  const std::size_t ranks = shape.ranks();
  const auto needs = [&](std::size_t stage, const std::string& what) {
    throw InputError(std::string(place), fmt::format("{} needs stages[{}] {}", schedule.name, stage, what));
  };
  if (shape.stages() != ranks + 2 || ranks == 1) {
    throw InputError(
        std::string(place),
        fmt::format("{} needs a stage on each of several devices, between two that all of them divide, not "
                    "{} on {}",
                    schedule.name, counted(shape.stages(), "stage"), counted(ranks, "device")));
  }
  std::vector<std::size_t> all(ranks);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t end : {std::size_t{0}, ranks + 1}) {
    if (shape.ranks_of(end) != all) needs(end, "divided among all devices, in the order of their stages");
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (shape.ranks_of(rank + 1) == std::vector{rank}) continue;
    needs(rank + 1, fmt::format("on {} alone", shown(shape.devices[rank])));
  }
}

void check_folding(const Schedule& schedule, const PipelineShape& shape)
{
  if (!shape.ranks_of_stage.empty() && schedule.folding != Folding::DividedEnds && schedule.folding != Folding::Any) {
    const auto divided = std::find_if(shape.ranks_of_stage.begin(), shape.ranks_of_stage.end(),
                                      [](const auto& ranks) { return ranks.size() > 1; });
    throw InputError(
        std::string(place),
        fmt::format("{} works with devices that have each of their stages alone, and {} divide stages[{}]; "
                    "use {}",
                    schedule.name, counted(divided->size(), "device"), divided - shape.ranks_of_stage.begin(),
                    names_with_divided_stages()));
  }
  const std::size_t stages = shape.stages();
  const std::size_t ranks = shape.ranks();
  const std::string stages_on_devices = fmt::format("{} on {}", counted(stages, "stage"), counted(ranks, "device"));
  const auto refuse = [&](const std::string& what) {
    throw InputError(std::string(place), fmt::format("{} {}", schedule.name, what));
  };
  switch (schedule.folding) {
    case Folding::Any:
      return;
    case Folding::DividedEnds:
      return check_divided_ends(schedule, shape);
    case Folding::OneEach:
      if (stages == ranks) break;
      refuse(fmt::format("works with one stage on each device, not {}; use {}", stages_on_devices,
                         names_with_several_stages()));
      break;
    case Folding::RoundRobin:
      if (stages % ranks == 0 && stages > ranks) break;
      refuse(fmt::format("needs the same number of stages on each device, at least 2, not {}{}", stages_on_devices,
                         stages == ranks ? "; use 1f1b" : ""));
      break;
    case Folding::V:
      if (stages == 2 * ranks) break;
      refuse(fmt::format("needs 2 stages on each device, not {}", stages_on_devices));
      break;
  }
  for (std::size_t stage = 0; stage < stages; ++stage) {
    const std::size_t rank = rank_of_stage(schedule.folding, stage, ranks);
    if (shape.rank_of_stage[stage] == rank) continue;
    refuse(fmt::format("needs stages[{}] on {}, and it is on {}", stage, shown(shape.devices[rank]),
                       shown(shape.devices[shape.rank_of_stage[stage]])));
  }
}

}  // namespace

PipelineShape shape_of(const Plan& plan)
{
  PipelineShape shape{devices_of(plan), {}, plan.goal.microbatches};
  for (const auto& stage : plan.stages) {
    const auto device = std::find(shape.devices.begin(), shape.devices.end(), stage.device());
    shape.rank_of_stage.push_back(static_cast<std::size_t>(device - shape.devices.begin()));
  }
  return shape;
}

std::vector<std::vector<std::size_t>> stages_by_rank(const PipelineShape& shape)
{
  std::vector<std::vector<std::size_t>> stages(shape.ranks());
  for (std::size_t stage = 0; stage < shape.stages(); ++stage) {
    for (const std::size_t rank : shape.ranks_of(stage)) stages.at(rank).push_back(stage);
  }
  return stages;
}

std::size_t rank_of_stage(Folding folding, std::size_t stage, std::size_t ranks)
{
  ensure(folding != Folding::Any && ranks > 0, "stages fold onto devices");
  if (folding == Folding::RoundRobin) return stage % ranks;
  if (folding == Folding::DividedEnds) {
    ensure(stage < ranks + 2, "a stage beyond the folding's");
    return stage == 0 || stage == ranks + 1 ? 0 : stage - 1;
  }
  ensure(stage < (folding == Folding::V ? 2 * ranks : ranks), "a stage beyond the folding's");
  return stage < ranks ? stage : 2 * ranks - 1 - stage;
}

bool Schedule::takes(std::string_view number) const
{
  return !number.empty() && std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

std::vector<Order> Schedule::orders(const PipelineShape& shape, const ScheduleChoice& choice) const
{
  ensure(shape.ranks() > 0 && shape.microbatches > 0, "a pipeline has devices and micro-batches");
  check_numbers(*this, choice);
  check_orders(*this, choice);
  for (const auto& [key, values] : choice.numbers) {
    if (!values.empty()) continue;
    throw InputError(std::string(place),
                     fmt::format("{} of {} is auto, which only an allocator can resolve; give numbers", key, name));
  }
  check_folding(*this, shape);
  // Far above any pipeline, and low enough for the arithmetic of positions.
  constexpr std::uint64_t most_tasks = std::numeric_limits<std::uint64_t>::max() / 16;
  if (shape.microbatches > most_tasks / (shape.stages() + shape.ranks())) {
    throw InputError("microbatches", fmt::format("{} are too many for an order of {}; use fewer", shape.microbatches,
                                                 counted(shape.stages(), "stage")));
  }
  auto made = make_orders(shape, choice);
  ensure(made.size() == shape.ranks(), "a schedule orders the work of each rank");
  return made;
}

const Schedule& require_schedule(std::string_view name)
{
  return find_or_offer(name, [](const Schedule&) { return true; });
}

const Schedule& require_schedule(const ScheduleChoice& choice)
{
  const bool has_orders = !choice.orders.empty();
  const Schedule& schedule = find_or_offer(choice.name, [has_orders](const Schedule& known) {
    return has_orders || !known.takes_orders || known.allocator_makes_orders;
  });
  check_numbers(schedule, choice);
  if (!schedule.allocator_makes_orders || has_orders) check_orders(schedule, choice);
  return schedule;
}

std::uint64_t most_in_flight(const Order& order, std::optional<std::uint32_t> part)
{
  const Bytes most = order.peak([&](const Task& task) {
    if (part && task.part != *part) return Bytes(0);
    if (task.opcode == Opcode::Forward) return Bytes(1);
    return Bytes(task.opcode == Opcode::BackwardInput ? 0 : -1);
  });
  return static_cast<std::uint64_t>(most.value);
}

}  // namespace isobar::schedules
