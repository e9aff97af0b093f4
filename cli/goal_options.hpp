#pragma once

#include "allocators/allocator.hpp"
#include "cli/inputs.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace isobar::cli {

/// Options of `plan`, `fit`, `compare` and `validate`: what to plan for, and how far to search. Sweeps and baselines
/// have the same as keys.
struct GoalOptions {
  std::optional<std::string> communication;
  std::vector<std::string> schedules;  ///< as text; none: the objective's default
  std::optional<std::string> warm_up;
  std::optional<std::uint64_t> chunks;
  std::optional<std::uint64_t> microbatch_group;
  bool overlap_experts = false;
  std::optional<std::uint64_t> microbatches;
  std::optional<std::uint64_t> budget;
  std::optional<std::string> time_limit;
  std::uint64_t seed = 1;
  bool polish = false;
  allocators::GridShape grid;
  std::optional<std::uint64_t> max_replicas;
  std::optional<std::uint64_t> max_tensor_parallel;
  std::optional<std::string> splits;
  std::optional<std::string> recompute;
  std::optional<std::uint64_t> window;
  std::optional<std::string> offload;
  std::optional<std::string> shares;
  std::optional<std::uint64_t> global_batch;
  std::optional<std::uint64_t> context;
  std::optional<std::string> context_exchange;
  std::optional<std::uint64_t> experts;
  std::optional<std::uint64_t> experts_tensor;

  /// Adds the options that define the goal, except --objective and --global-batch.
  void add_goal_to(CLI::App& command);
  /// The same; --schedule takes several.
  void add_goals_to(CLI::App& command);
  void add_global_batch_to(CLI::App& command);
  /// Adds what replicas may divide among them, sequences and experts, and lets --recompute be auto.
  void add_divisions_to(CLI::App& command);
  /// Adds the options that limit the search.
  void add_search_to(CLI::App& command);
  /// The goal for an objective and an allocator: the options that were given, and the defaults of both for the rest
  /// (allocators::defaults_of).
  /// @throws InputError naming the option.
  Goal goal(const std::string& objective, const std::string& allocator) const;
  /// The same for each schedule.
  std::vector<Goal> goals(const std::string& objective, const std::string& allocator) const;
  /// The value of --recompute, or its default for an allocator.
  RecomputedLayers recompute_for(const std::string& allocator) const;
  /// The limits of an allocator's search. Of the options that not every allocator takes, those that this one does.
  allocators::SearchLimits limits(const std::string& allocator) const;
  /// The value of --time-limit.
  std::optional<Seconds> search_time() const;
  /// The values of --context and --context-exchange. @throws InputError naming the option.
  ContextParallelism context_parallelism() const;
  /// The values of --experts and --experts-tensor. @throws InputError naming the option.
  ExpertParallelism expert_parallelism() const;
  /// Whether --recompute is auto, which only `plan` takes.
  bool chooses_recomputation() const;
  /// Whether --offload is auto. @throws InputError if it is neither that nor none.
  bool offloads() const;
  /// @throws InputError for an option of a search that none of the allocators takes.
  void check_search(const std::vector<std::string>& allocators) const;

 private:
  void add_communication_to(CLI::App& command);
  void add_other_goal_options_to(CLI::App& command);
  std::vector<ScheduleChoice> chosen_schedules(const ScheduleChoice& otherwise) const;
};

/// Reads the name of an objective. @throws InputError "--objective: …".
Objective objective_of(const std::string& name);

/// "allocator hybrid" or "allocators amp, grid": those with a property, as the help of an option names them.
std::string allocators_with(bool allocators::Allocator::*property);

/// Checks a schedule that is written as text: its name, and that it takes the numbers. @throws InputError "schedule:
/// …".
ScheduleChoice schedule_of(const std::string& text);

/// Reads a time such as "30s". @throws InputError naming the option.
Seconds seconds_from_option(const std::string& option, const std::string& text);

}  // namespace isobar::cli
