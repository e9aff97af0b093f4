#include "core/plan/plan.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/system_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

namespace isobar {

namespace {

constexpr NameTable<Objective, 5> objectives = {{{Objective::Step, "step"},
                                                 {Objective::DtFm, "dtfm"},
                                                 {Objective::Sequential, "sequential"},
                                                 {Objective::Bottleneck, "bottleneck"},
                                                 {Objective::Pipeline, "pipeline"}}};
constexpr NameTable<Objective, 5> minimized = {
    {{Objective::Step, "the time of a step under the plan's schedule, transfers as they are simulated"},
     {Objective::DtFm,
      "DT-FM's cost of communication: the longest gradient sync and twice the transfers between stages"},
     {Objective::Sequential, "one micro-batch through all stages: the sum of their times and transfers"},
     {Objective::Bottleneck, "the largest time of a stage"},
     {Objective::Pipeline, "(M - 1) times the largest time of a stage, plus the sum of all"}}};
constexpr NameTable<Communication, 4> communications = {{{Communication::None, "none"},
                                                         {Communication::Overlapped, "overlapped"},
                                                         {Communication::Serial, "serial"},
                                                         {Communication::Played, "played"}}};
constexpr NameTable<Outcome, 4> outcomes = {{{Outcome::Optimal, "optimal"},
                                             {Outcome::Feasible, "feasible"},
                                             {Outcome::Infeasible, "infeasible"},
                                             {Outcome::TimedOut, "timed_out"}}};
constexpr NameTable<StepTimeBy, 3> names_of_step_times = {
    {{StepTimeBy::Formula, "formula"}, {StepTimeBy::Recurrence, "recurrence"}, {StepTimeBy::Played, "played"}}};

}  // namespace

std::string_view name_of(Objective objective)
{
  return name_in(objectives, objective);
}
std::string_view minimized_by(Objective objective)
{
  return name_in(minimized, objective);
}
std::string_view name_of(Communication communication)
{
  return name_in(communications, communication);
}
std::string_view name_of(Outcome outcome)
{
  return name_in(outcomes, outcome);
}
std::string_view name_of(StepTimeBy by)
{
  return name_in(names_of_step_times, by);
}
std::optional<Objective> objective_from_name(std::string_view name)
{
  return value_in(objectives, name);
}
std::optional<Communication> communication_from_name(std::string_view name)
{
  return value_in(communications, name);
}
std::optional<Outcome> outcome_from_name(std::string_view name)
{
  return value_in(outcomes, name);
}
std::optional<StepTimeBy> step_time_by_from_name(std::string_view name)
{
  return value_in(names_of_step_times, name);
}
std::vector<std::string> objective_names()
{
  return names_in(objectives);
}
std::vector<std::string> communication_names()
{
  return names_in(communications);
}
std::vector<std::string> outcome_names()
{
  return names_in(outcomes);
}

Goal Goal::with_defaults(Objective objective)
{
  if (objective == Objective::Sequential) {
    return {objective, Communication::Serial, choice_of(ChainSchedule::Sequential), 1};
  }
  Goal goal{objective, Communication::Played, choice_of(ChainSchedule::OneForwardOneBackward), 8};
  if (goal.is_formula()) goal.communication = Communication::Overlapped;
  return goal;
}

bool are_compatible(Objective objective, Communication communication)
{
  if (objective == Objective::Step) {
    return communication == Communication::Played || communication == Communication::None;
  }
  return (communication == Communication::Played) == (objective == Objective::DtFm);
}

Path counted_path(Communication communication, Path path)
{
  switch (communication) {
    case Communication::None:
      return {Seconds(0), BytesPerSecond(std::numeric_limits<double>::infinity())};
    case Communication::Overlapped:
      return {Seconds(0), path.bandwidth};
    case Communication::Serial:
    case Communication::Played:
      return path;
  }
  return path;
}

std::uint64_t microbatches_in_flight(ChainSchedule schedule, std::size_t stages_after, std::uint64_t microbatches)
{
  switch (schedule) {
    case ChainSchedule::Sequential:
      return 1;
    case ChainSchedule::GPipe:
      return microbatches;
    case ChainSchedule::OneForwardOneBackward:
      return std::min<std::uint64_t>(microbatches, stages_after + 1);
  }
  return microbatches;
}

std::optional<double> Plan::gap_fraction() const
{
  if (!objective || !objective_bound) return std::nullopt;
  if (objective->value <= 0) return 0.0;
  return (*objective - *objective_bound) / *objective;
}

Stage stage_on(Shard shard, std::size_t first_layer, std::size_t last_layer)
{
  return {first_layer, last_layer, {{0, {std::move(shard)}}}};
}

Stage stage_on(std::string device, std::size_t first_layer, std::size_t last_layer)
{
  return stage_on(Shard{std::move(device)}, first_layer, last_layer);
}

std::string text_of(const Fingerprint& input)
{
  std::string text = input.name;
  for (const auto& [key, value] : input.set) text += fmt::format(" --set {}={}", key, value);
  return text;
}

const WorkloadSettings& settings_of(const Plan& plan, const std::string& plan_file, const WorkloadSettings& given,
                                    const std::string& options)
{
  const auto& settings = plan.workload.set;
  for (const auto& [key, value] : given) {
    const auto own = settings.find(key);
    if (own != settings.end() && own->second == value) continue;
    throw InputError(options,
                     fmt::format("{}={}: {} was made {}; leave the option out, or plan again", shown(key), shown(value),
                                 on_one_line(plan_file),
                                 own == settings.end() ? fmt::format("without a setting of {}", shown(key))
                                                       : fmt::format("with {}={}", shown(key), shown(own->second))));
  }
  return settings;
}

std::vector<std::string> devices_of(const Plan& plan)
{
  std::vector<std::string> devices;
  std::unordered_set<std::string_view> known;
  for (const auto& stage : plan.stages) {
    for (const auto& replica : stage.replicas) {
      for (const auto& shard : replica.shards) {
        if (known.insert(shard.device).second) devices.push_back(shard.device);
      }
    }
  }
  return devices;
}

CountedStep counted_step(const Plan& plan)
{
  for (const auto& stage : plan.stages) {
    const CountedStep counted = counted_step(stage.residence.overlap);
    if (stage.residence.optimizer != Tier::Device && counted.overlaps()) return counted;
  }
  // What training software gathers after an update meets the next step.
  const bool gathers_after = plan.sync.sharded == Sharding::Optimizer || plan.sync.sharded == Sharding::Gradients;
  if (plan.system && gathers_after && overlaps_gathers(plan)) return {.before = 1};
  return {};
}

bool is_chain(const Plan& plan)
{
  const bool has_single_devices =
      std::all_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) { return stage.is_on_one_device(); });
  return has_single_devices && !uses_machines(plan) && !divides_operators(plan) && !plan.system &&
         plan.transfers == TransferRules{} && devices_of(plan).size() == plan.stages.size() &&
         chain_schedule(plan.goal.schedule).has_value();
}

}  // namespace isobar
