#include "cli/goal_options.hpp"

#include "allocators/registry.hpp"
#include "core/base/command_options.hpp"
#include "core/text/quantity_text.hpp"
#include "core/text/separated.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <charconv>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace isobar::cli {

namespace {

/// The value of an option that takes one word of a list.
template <typename Value, typename FromName>
Value chosen(const std::string& option, const std::string& word, FromName from_name,
             const std::vector<std::string>& words)
{
  if (const std::optional<Value> value = from_name(word)) return *value;
  const std::string nearest = nearest_word(word, words);
  throw InputError(option, fmt::format("{} is none of {}{}", in_quotes(word), fmt::join(words, ", "),
                                       nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

constexpr std::string_view chosen_by_allocator = "auto";

/// The value of --warm-up: a number for each device, or none for "auto".
std::vector<std::uint64_t> warm_up_from(const std::string& text)
{
  std::vector<std::uint64_t> numbers;
  if (text == chosen_by_allocator) return numbers;
  for (const auto& name : names_from_list(text)) {
    std::uint64_t number = 0;
    const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (fault != std::errc{} || end != name.data() + name.size()) {
      throw InputError("--warm-up", in_quotes(text) + " is neither auto nor a number for each device, such as 3,2,1,0");
    }
    numbers.push_back(number);
  }
  return numbers;
}

/// Gives the numbers of an option to the schedules that take them. @throws InputError if none does.
void add_numbers(std::vector<ScheduleChoice>& choices, const std::string& option, const std::string& key,
                 const std::vector<std::uint64_t>& numbers)
{
  bool is_taken = false;
  for (auto& choice : choices) {
    if (!schedules::require_schedule(choice.name).takes(key)) continue;
    is_taken = true;
    if (choice.numbers.emplace(key, numbers).second) continue;
    throw InputError(option, fmt::format("{} has its {} already; give them once", text_of(choice), key));
  }
  if (is_taken) return;
  std::vector<std::string_view> others;
  for (const auto& schedule : schedules::schedules()) {
    if (schedule.takes(key) && !schedule.takes_orders) others.push_back(schedule.name);
  }
  throw InputError(
      option, fmt::format("schedule {} does not take it; it is for {}", choices.front().name, fmt::join(others, ", ")));
}

/// "schedule interleaved" or "schedules 1f1b, …": those that take a number, as help names them.
std::string schedules_with(std::string_view number)
{
  std::vector<std::string_view> names;
  for (const auto& schedule : schedules::schedules()) {
    if (schedule.takes(number) && !schedule.takes_orders) names.push_back(schedule.name);
  }
  return fmt::format("schedule{} {}", names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

constexpr auto schedule_default =
    "(default: sequential for objective sequential, gpipe with --offload auto and for allocators that use a device's "
    "machine, else 1f1b)";

}  // namespace

std::string allocators_with(bool allocators::Allocator::*property)
{
  const auto names = allocators::names_with(property);
  return fmt::format("allocator{} {}", names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

Objective objective_of(const std::string& name)
{
  return chosen<Objective>("--objective", name, objective_from_name, objective_names());
}

ScheduleChoice schedule_of(const std::string& text)
{
  ScheduleChoice choice = schedule_from_text(text);
  schedules::require_schedule(choice);
  return choice;
}

void GoalOptions::add_goal_to(CLI::App& command)
{
  add_communication_to(command);
  command
      .add_option_function<std::string>(
          "--schedule", [this](const std::string& text) { schedules = {text}; },
          fmt::format("order of the work on micro-batches (isobar list schedules), with its numbers if it has some, "
                      "such as \"interleaved(chunks=2)\" {}",
                      schedule_default))
      ->type_name("TEXT");
  add_other_goal_options_to(command);
}

void GoalOptions::add_goals_to(CLI::App& command)
{
  add_communication_to(command);
  add_list(command, "--schedule", schedules,
           fmt::format("orders of the work on micro-batches to compare (isobar list schedules), with their numbers if "
                       "they have some, such as 1f1b,\"interleaved(chunks=2)\" {}",
                       schedule_default));
  add_other_goal_options_to(command);
}

void GoalOptions::add_communication_to(CLI::App& command)
{
  command.add_option("--communication", communication,
                     "how transfers count: played or none for objective step; played for dtfm; none, overlapped or "
                     "serial for the others (default: played for step, serial for sequential, else overlapped)");
}

void GoalOptions::add_other_goal_options_to(CLI::App& command)
{
  command
      .add_option_function<std::string>(
          "--warm-up", [this](const std::string& text) { warm_up = text; },
          fmt::format("forwards of each device before its first round of a forward and a backward, N,…, or auto to "
                      "choose them for the delays of the links ({}; default: as the schedule has them)",
                      schedules_with("warm_up")))
      ->type_name("NUMBERS");
  add_count(command, "--chunks", chunks,
            fmt::format("stages of each device ({}; default: the best of 2 to 4)", schedules_with("chunks")));
  add_count(
      command, "--microbatch-group", microbatch_group,
      fmt::format("micro-batches that each stage computes before the device takes its next stage: at least as many "
                  "as a pipeline has devices ({}; default: as many)",
                  schedules_with("group")));
  command.add_flag(
      "--overlap-experts", overlap_experts,
      fmt::format("a forward and a backward of two micro-batches run layer by layer together, and compute "
                  "while tokens of the other travel to experts and back ({}; replicas that divide experts, "
                  "without recomputation)",
                  schedules_with(overlap_experts_key)));
  add_count(command, "--microbatches", microbatches,
            "micro-batches of a step (default: 1 for objective sequential and for allocators that use a device's "
            "machine, else 8)");
  command.add_option("--recompute", recompute,
                     "layers that recompute their activations in the backward pass: none, all, inner (all but the "
                     "first and the last; under compute: operators also all), or a list such as 3-10,12 (default: "
                     "inner with --offload auto and for "
                     "allocators that use a device's machine, else none)");
}

void GoalOptions::add_global_batch_to(CLI::App& command)
{
  add_count(command, "--global-batch", global_batch,
            "samples of a step: plans for several micro-batch sizes that divide it and keeps the least objective "
            "(objectives step and pipeline; default: the workload's micro-batch times --microbatches)");
}

void GoalOptions::add_divisions_to(CLI::App& command)
{
  using allocators::Allocator;
  command
      .add_option_function<std::string>(
          "--context",
          [this](const std::string& text) {
            grid.any_context = text == chosen_by_allocator;
            context = grid.any_context ? 1 : count_from_text(text);
            if (!context) throw InputError("--context", in_quotes(text) + " is neither a number of parts nor auto");
          },
          fmt::format("replicas that divide each sequence, beside --replicas, or auto, which tries every number and "
                      "exchange ({}; gpt, llama and decoder with unit: operator and compute: operators; default: 1)",
                      allocators_with(&Allocator::takes_context)))
      ->type_name("COUNT");
  command.add_option("--context-exchange", context_exchange,
                     fmt::format("how they exchange what attention needs: {} (default: ring)",
                                 fmt::join(context_exchange_names(), ", ")));
  add_count(command, "--experts", experts,
            fmt::format("neighbouring replicas, also those of --context, that divide the experts of each layer ({}; "
                        "workloads whose layers have experts; default: the best number, if each layer is one of "
                        "attention or of experts, as with unit: operator)",
                        allocators_with(&Allocator::takes_experts)));
  add_count(command, "--experts-tensor", experts_tensor,
            "1: each shard of these replicas has whole experts (default: a part of every expert, as of all else)");
  CLI::Option& recomputing = *command.get_option("--recompute");
  recomputing.description(recomputing.get_description() + "; auto: none or all, whichever is better");
}

ContextParallelism GoalOptions::context_parallelism() const
{
  if (context == 0) throw InputError("--context", "0 is not a number of parts; write 1 or more");
  if (context_exchange && grid.any_context) {
    throw InputError("--context-exchange", "--context auto tries every exchange; leave out one of them");
  }
  if (context_exchange && context.value_or(1) == 1) {
    throw InputError("--context-exchange", "is for divided sequences; add --context");
  }
  ContextParallelism parallelism;
  if (context.value_or(1) == 1) return parallelism;
  parallelism.degree = *context;
  if (context_exchange) {
    parallelism.exchange = chosen<ContextExchange>("--context-exchange", *context_exchange, context_exchange_from_name,
                                                   context_exchange_names());
  }
  return parallelism;
}

ExpertParallelism GoalOptions::expert_parallelism() const
{
  if (experts == 0) throw InputError("--experts", "0 is not a number of parts; write 1 or more");
  if (!experts && experts_tensor) throw InputError("--experts-tensor", "is for divided experts; add --experts");
  if (experts_tensor.value_or(1) != 1) {
    throw InputError("--experts-tensor",
                     fmt::format("{}; write 1, for whole experts on each shard, or leave it out", *experts_tensor));
  }
  return {experts.value_or(1), experts_tensor.has_value()};
}

void GoalOptions::add_search_to(CLI::App& command)
{
  add_count(command, "--budget", budget,
            "work that a search may do, in the allocator's own units, with the same result on every machine (default: "
            "set by the allocator)");
  command.add_option("--time-limit", time_limit,
                     "time that a search may take, such as 30s (default: set by the allocator)");
  add_count(command, "--seed", seed, "seed of allocators that draw random numbers (default: 1)");
  using allocators::Allocator;
  add_count(
      command, "--pipeline", grid.pipeline,
      fmt::format("devices of a pipeline ({}; default: the best number)", allocators_with(&Allocator::takes_grid)));
  add_count(command, "--replicas", grid.replicas,
            fmt::format("pipelines that divide the micro-batches of a step ({}; default: the best number)",
                        allocators_with(&Allocator::takes_grid)));
  add_count(command, "--tensor", grid.tensor,
            fmt::format("devices that divide each layer ({}; workloads with unit: operator; default: the best number)",
                        allocators_with(&Allocator::takes_shards)));
  command.add_option("--splits", splits,
                     fmt::format("how they divide it: 1d, sequence (1d, and the sequence between layers), or in a grid "
                                 "2d, 2.5d or 3d ({}; default: 1d)",
                                 allocators_with(&Allocator::takes_splits)));
  add_count(command, "--max-replicas", max_replicas,
            fmt::format("most pipelines side by side ({}; default: as many as there are devices)",
                        allocators_with(&Allocator::limits_degrees)));
  add_count(command, "--max-tensor-parallel", max_tensor_parallel,
            fmt::format("most devices that divide each layer ({}, workloads with unit: operator; default: 16)",
                        allocators_with(&Allocator::limits_degrees)));
  add_count(command, "--window", window,
            fmt::format("layers of a window that stay on the device ({}; default: as their authors choose it)",
                        allocators_with(&Allocator::takes_window)));
  command.add_option("--offload", offload,
                     fmt::format("whether layers of stages that do not fit on their devices pass through them: auto or "
                                 "none ({}; default: none)",
                                 allocators_with(&Allocator::takes_offload)));
  command.add_option("--shares", shares,
                     fmt::format("shares of unequal devices: best, even, or speed, in proportion to it ({}; default: "
                                 "best)",
                                 allocators_with(&Allocator::takes_share_rule)));
  command.add_flag("--polish", polish,
                   fmt::format("minimize the step at the end of the search, whatever the objective; always on for "
                               "objective step ({})",
                               allocators_with(&Allocator::improves_plans)));
}

std::vector<ScheduleChoice> GoalOptions::chosen_schedules(const ScheduleChoice& otherwise) const
{
  std::vector<ScheduleChoice> choices;
  for (const auto& text : schedules) {
    try {
      choices.push_back(schedule_of(text));
    } catch (const InputError& fault) {
      throw InputError("--schedule", without_place("schedule", fault));
    }
  }
  if (choices.empty()) choices.push_back(otherwise);
  if (warm_up) add_numbers(choices, "--warm-up", "warm_up", warm_up_from(*warm_up));
  if (chunks) add_numbers(choices, "--chunks", "chunks", {*chunks});
  if (microbatch_group) add_numbers(choices, "--microbatch-group", "group", {*microbatch_group});
  if (overlap_experts) add_numbers(choices, "--overlap-experts", overlap_experts_key, {1});
  return choices;
}

Goal GoalOptions::goal(const std::string& objective, const std::string& allocator) const
{
  return goals(objective, allocator).front();
}

bool GoalOptions::offloads() const
{
  if (!offload || *offload == "none") return false;
  if (*offload == chosen_by_allocator) return true;
  throw InputError("--offload", in_quotes(*offload) + " is neither auto nor none");
}

RecomputedLayers GoalOptions::recompute_for(const std::string& allocator) const
{
  if (recompute) return {*recompute};
  const std::string layers = allocators::defaults_of(allocator, Objective::Step, offloads()).recompute;
  const bool is_of_allocator = allocators::has_property(allocator, &allocators::Allocator::uses_machines);
  return {layers, fmt::format("--recompute {}, the default of {}", layers,
                              is_of_allocator ? "allocator " + allocator : "--offload auto")};
}

bool GoalOptions::chooses_recomputation() const
{
  return recompute == chosen_by_allocator;
}

std::vector<Goal> GoalOptions::goals(const std::string& objective, const std::string& allocator) const
{
  Goal goal = allocators::defaults_of(allocator, objective_of(objective), offloads()).goal;
  if (communication) {
    goal.communication =
        chosen<Communication>("--communication", *communication, communication_from_name, communication_names());
  }
  if (microbatches) goal.microbatches = *microbatches;
  if (!are_compatible(goal.objective, goal.communication)) {
    throw InputError("--communication",
                     fmt::format("{} does not go with objective {}; {}", name_of(goal.communication), objective,
                                 goal.objective == Objective::Step   ? "use played or none, or another objective"
                                 : goal.objective == Objective::DtFm ? "it counts them as played"
                                                                     : "played is for objectives step and dtfm"));
  }
  if (goal.microbatches < 1 || goal.microbatches > most_microbatches_by_recurrence) {
    throw InputError("--microbatches",
                     fmt::format("{} is not in 1 to {}; a step is predicted micro-batch by micro-batch",
                                 goal.microbatches, most_microbatches_by_recurrence));
  }
  std::vector<Goal> goals;
  for (auto& schedule : chosen_schedules(goal.schedule)) {
    goal.schedule = std::move(schedule);
    if (goal.is_formula() && !chain_schedule(goal.schedule)) {
      throw InputError("--schedule",
                       fmt::format("{} does not go with objective {}, a formula for sequential, gpipe and 1f1b; use "
                                   "objective step",
                                   text_of(goal.schedule), objective));
    }
    goals.push_back(goal);
  }
  return goals;
}

allocators::SearchLimits GoalOptions::limits(const std::string& allocator) const
{
  allocators::SearchLimits limits;
  limits.budget = budget;
  limits.seed = seed;
  limits.time_limit = search_time();
  const auto has = [&allocator](bool allocators::Allocator::*property) {
    return allocators::has_property(allocator, property);
  };
  limits.polish = polish && has(&allocators::Allocator::improves_plans);
  if (has(&allocators::Allocator::takes_grid)) {
    limits.grid.pipeline = grid.pipeline;
    limits.grid.replicas = grid.replicas;
  }
  if (has(&allocators::Allocator::takes_shards)) limits.grid.tensor = grid.tensor;
  if (has(&allocators::Allocator::takes_experts)) limits.grid.experts = experts;
  limits.grid.any_context = grid.any_context && has(&allocators::Allocator::takes_context);
  if (splits && has(&allocators::Allocator::takes_splits)) {
    limits.grid.splits = chosen<ShardGrid::Form>("--splits", *splits, shard_form_from_name, shard_form_names());
  }
  if (has(&allocators::Allocator::limits_degrees)) {
    limits.most_replicas = max_replicas;
    limits.most_tensor = max_tensor_parallel;
  }
  if (has(&allocators::Allocator::takes_window)) limits.window = window;
  limits.offload = offloads() && has(&allocators::Allocator::takes_offload);
  if (shares && has(&allocators::Allocator::takes_share_rule)) {
    limits.shares = chosen<allocators::ShareRule>("--shares", *shares, allocators::share_rule_from_name,
                                                  allocators::share_rule_names());
  }
  return limits;
}

std::optional<Seconds> GoalOptions::search_time() const
{
  return time_limit ? std::optional(seconds_from_option("--time-limit", *time_limit)) : std::nullopt;
}

void GoalOptions::check_search(const std::vector<std::string>& allocators) const
{
  using allocators::Allocator;
  struct Option {
    const char* name;
    bool is_given;
    bool Allocator::*property;  // of the allocators that take it
  };
  const Option options[] = {
      {"--polish", polish, &Allocator::improves_plans},
      {"--pipeline", grid.pipeline.has_value(), &Allocator::takes_grid},
      {"--replicas", grid.replicas.has_value(), &Allocator::takes_grid},
      {"--tensor", grid.tensor.has_value(), &Allocator::takes_shards},
      {"--splits", splits.has_value(), &Allocator::takes_splits},
      {"--context", context.has_value(), &Allocator::takes_context},
      {"--experts", experts.has_value(), &Allocator::takes_experts},
      {"--max-replicas", max_replicas.has_value(), &Allocator::limits_degrees},
      {"--max-tensor-parallel", max_tensor_parallel.has_value(), &Allocator::limits_degrees},
      {"--window", window.has_value(), &Allocator::takes_window},
      {"--offload", offloads(), &Allocator::takes_offload},
      {"--shares", shares.has_value(), &Allocator::takes_share_rule},
  };
  for (const auto& option : options) {
    if (option.is_given) allocators::require_property(option.property, option.name, allocators);
  }
  for (const auto& [option, number] : {std::pair("--pipeline", grid.pipeline), std::pair("--replicas", grid.replicas),
                                       std::pair("--tensor", grid.tensor), std::pair("--max-replicas", max_replicas),
                                       std::pair("--max-tensor-parallel", max_tensor_parallel)}) {
    if (number == 0) throw InputError(option, "0 is not a number of devices; write 1 or more");
  }
}

Seconds seconds_from_option(const std::string& option, const std::string& text)
{
  try {
    return seconds_from_text(text);
  } catch (const std::invalid_argument& fault) {
    throw InputError(option, fault.what());
  }
}

}  // namespace isobar::cli
