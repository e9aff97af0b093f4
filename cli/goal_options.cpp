#include "cli/goal_options.hpp"

#include "allocators/registry.hpp"
#include "core/base/command_options.hpp"
#include "core/base/quantity_text.hpp"

#include <fmt/format.h>

#include <stdexcept>

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

}  // namespace

void GoalOptions::add_goal_to(CLI::App& command)
{
  command.add_option("--communication", communication,
                     "how transfers count: played or none for objective step; none, overlapped or serial for the "
                     "others (default: played for step, serial for sequential, else overlapped)");
  command.add_option("--schedule", schedule,
                     "order of the work on micro-batches: sequential, gpipe or 1f1b (default: sequential for objective "
                     "sequential, else 1f1b)");
  add_count(command, "--microbatches", microbatches,
            "micro-batches of a step (default: 1 for objective sequential, else 8)");
  command.add_option("--recompute", recompute,
                     "layers that recompute their activations in the backward pass: none, all, or a list such as "
                     "3-10,12 (default: none)");
}

void GoalOptions::add_global_batch_to(CLI::App& command)
{
  add_count(command, "--global-batch", global_batch,
            "samples of a step: plans for several micro-batch sizes that divide it and keeps the least objective "
            "(objectives step and pipeline; default: the workload's micro-batch times --microbatches)");
}

void GoalOptions::add_search_to(CLI::App& command)
{
  add_count(command, "--budget", budget,
            "work that a search may do, in the allocator's own units, with the same result on every machine (default: "
            "set by the allocator)");
  command.add_option("--time-limit", time_limit,
                     "time that a search may take, such as 30s (default: set by the allocator)");
  add_count(command, "--seed", seed, "seed of allocators that draw random numbers (default: 1)");
  command.add_flag("--polish", polish,
                   "minimize the step at the end of the search, whatever the objective; always on for objective step "
                   "(allocator local-search)");
}

Goal GoalOptions::goal(const std::string& objective) const
{
  Goal goal = Goal::with_defaults(chosen<Objective>("--objective", objective, objective_from_name, objective_names()));
  if (communication) {
    goal.communication =
        chosen<Communication>("--communication", *communication, communication_from_name, communication_names());
  }
  if (schedule) goal.schedule = chosen<Schedule>("--schedule", *schedule, schedule_from_name, schedule_names());
  if (microbatches) goal.microbatches = *microbatches;
  if (!are_compatible(goal.objective, goal.communication)) {
    throw InputError("--communication",
                     fmt::format("{} does not go with objective {}; {}", name_of(goal.communication), objective,
                                 goal.objective == Objective::Step ? "use played or none, or another objective"
                                                                   : "played is for objective step only"));
  }
  if (goal.microbatches < 1 || goal.microbatches > most_microbatches_by_recurrence) {
    throw InputError("--microbatches",
                     fmt::format("{} is not in 1 to {}; a step is predicted micro-batch by micro-batch",
                                 goal.microbatches, most_microbatches_by_recurrence));
  }
  return goal;
}

allocators::SearchLimits GoalOptions::limits() const
{
  allocators::SearchLimits limits;
  limits.budget = budget;
  limits.seed = seed;
  limits.polish = polish;
  if (time_limit) limits.time_limit = seconds_from_option("--time-limit", *time_limit);
  return limits;
}

void GoalOptions::check_polish(const std::vector<std::string>& allocators) const
{
  if (!polish) return;
  for (const auto& allocator : allocators) allocators::require_improver("--polish", allocator);
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
