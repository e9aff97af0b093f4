#include "cli/planning/simulated_choice.hpp"

#include "allocators/registry.hpp"
#include "allocators/rivals.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulation.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/child_process.hpp"
#include "core/base/progress_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <nlohmann/json.hpp>

#include <map>
#include <thread>

namespace isobar::cli {

namespace {

constexpr Seconds most_for_one(1800);

/// A plan for the goal.
struct Candidate {
  Plan plan;
  Objective found_for = Objective::Step;  ///< of the search that found its placement
  std::optional<Seconds> step_time = {};  ///< simulated
};

/// Identifies a placement among the candidates.
std::string placement_of(const Plan& plan)
{
  std::string text = fmt::format("{} {} {} {} {}", plan.goal.microbatches, text_of(plan.goal.schedule),
                                 name_of(plan.sync.algorithm), name_of(plan.sync.sharded), plan.sync.bucket.value);
  if (plan.routing) text += fmt::format(" {} {}", plan.routing->capacity_samples, plan.routing->by_index);
  text += fmt::format(" {} {}", plan.sync.adds_replicas, fmt::join(plan.sync.bucket_ends, ","));
  for (const auto& stage : plan.stages) {
    text += fmt::format("\n{} {}", stage.last_layer, text_of(stage.grid));
    for (const auto& split : stage.splits) text += " " + split.split;
    for (const auto& replica : stage.replicas) {
      text += fmt::format(" {}", replica.microbatches);
      for (const auto& shard : replica.shards) text += fmt::format(" {} {}", shard.share, shard.device);
    }
  }
  return text;
}

class Choice {
 public:
  Choice(const Inputs& inputs, const std::string& allocator, const allocators::SearchLimits& limits)
      : inputs_(inputs), allocator_(allocator), limits_(limits)
  {
  }

  /// Adds the allocator's own candidates.
  void plan(const Goal& goal, const std::vector<BatchSplit>& splits)
  {
    for (const auto& split : splits) {
      Goal split_goal = goal;
      split_goal.microbatches = split.microbatches;
      const Workload workload = at_micro_batch(inputs_, split.micro_batch, "--global-batch");
      const Cluster& cluster = inputs_.platform.cluster();
      for (Plan& plan : allocators::allocate_candidates(allocator_, workload, cluster, split_goal, limits_)) {
        record_inputs(plan, inputs_, split.micro_batch);
        add({std::move(plan), goal.objective});
      }
    }
  }

  void plan_by_rivals(const Goal& goal, const std::vector<BatchSplit>& splits)
  {
    allocators::SearchLimits limits;
    limits.time_limit = limits_.time_limit;
    limits.seed = limits_.seed;
    limits.rules = limits_.rules;
    std::vector<std::function<std::string()>> work;
    std::vector<allocators::Rival> rivals;
    for (const auto& split : splits) {
      Goal split_goal = goal;
      split_goal.microbatches = split.microbatches;
      for (const auto& rival : allocators::rivals_of(allocator_, split_goal)) {
        rivals.push_back(rival);
        work.emplace_back(
            [this, rival, split_goal, split, limits] { return plan_of(rival, split_goal, split, limits); });
      }
    }
    ProgressLine progress("plan: other allocators", work.size());
    std::size_t ended = 0;
    const auto on_end = [&](std::size_t index, const ChildResult& result) {
      progress.done(++ended);
      if (result.failure) {
        spdlog::warn("{}: {}", rivals[index].allocator, result.failure->text);
      } else if (!result.output.empty()) {
        plans_of_rivals_[index] = plan_from_json(result.output, "plan");
      }
    };
    run_in_children(work, std::thread::hardware_concurrency(), most_for_one, on_end);
    // In the order of the work, not of its completion, so that the result is deterministic.
    for (auto& [index, plan] : plans_of_rivals_) add({std::move(plan), rivals[index].goal.objective});
  }

  void simulate()
  {
    std::vector<std::function<std::string()>> work;
    for (const auto& candidate : candidates_) {
      work.emplace_back([this, &candidate] { return simulate_plan(inputs_, candidate.plan, 1, ""); });
    }
    ProgressLine progress("plan: simulate", work.size());
    std::size_t ended = 0;
    const auto on_end = [&](std::size_t index, const ChildResult& result) {
      progress.done(++ended);
      if (!result.failure) {
        candidates_[index].step_time = Seconds(nlohmann::json::parse(result.output)["step_time_s"].get<double>());
      } else {
        spdlog::warn("simulating a placement of {}: {}", candidates_[index].plan.allocator, result.failure->text);
      }
    };
    const auto results = run_in_children(work, std::thread::hardware_concurrency(), most_for_one, on_end);
    if (!results.empty() && !best_simulated()) results.front().output_or_throw();
  }

  Plan best() const
  {
    const Candidate* chosen = best_simulated();
    if (chosen == nullptr) return candidates_.empty() ? without_stages_.back() : candidates_.front().plan;
    Plan plan = chosen->plan;
    std::uint64_t simulated = 0;
    for (const auto& candidate : candidates_) {
      if (candidate.plan.goal.microbatches == plan.goal.microbatches) allocators::adopt_bound(plan, candidate.plan);
      if (candidate.step_time) ++simulated;
    }
    for (const auto& other : without_stages_) {  // searches that timed out prove bounds too
      if (other.goal.microbatches == plan.goal.microbatches) allocators::adopt_bound(plan, other);
    }
    plan.simulated = Simulated{*chosen->step_time, simulated, plan.allocator, chosen->found_for};
    plan.allocator = allocator_;
    return plan;
  }

 private:
  /// The work of a child: the plan as JSON, or "" when there is no placement for the goal.
  std::string plan_of(const allocators::Rival& rival, const Goal& goal, const BatchSplit& split,
                      const allocators::SearchLimits& limits) const
  {
    const Workload workload = at_micro_batch(inputs_, split.micro_batch, "--global-batch");
    const Cluster& cluster = inputs_.platform.cluster();
    std::optional<Plan> plan = allocators::allocate(rival.allocator, workload, cluster, rival.goal, limits);
    if (rival.goal.objective != goal.objective) plan = allocators::carry_over(*plan, workload, cluster, goal);
    if (!plan || plan->stages.empty()) return "";
    record_inputs(*plan, inputs_, split.micro_batch);
    return plan_to_json(*plan);
  }

  void add(Candidate candidate)
  {
    if (candidate.plan.stages.empty()) {
      without_stages_.push_back(std::move(candidate.plan));
      return;
    }
    const auto [entry, is_new] = placements_.emplace(placement_of(candidate.plan), candidates_.size());
    if (is_new) {
      candidates_.push_back(std::move(candidate));
    } else {
      allocators::adopt_bound(candidates_[entry->second].plan, candidate.plan);
    }
  }

  const Candidate* best_simulated() const
  {
    const Candidate* best = nullptr;
    for (const auto& candidate : candidates_) {
      if (!candidate.step_time) continue;
      if (best == nullptr || *candidate.step_time < *best->step_time) best = &candidate;
    }
    return best;
  }

  const Inputs& inputs_;
  const std::string& allocator_;
  const allocators::SearchLimits& limits_;
  std::vector<Candidate> candidates_;  // distinct placements
  std::vector<Plan> without_stages_;
  std::map<std::size_t, Plan> plans_of_rivals_;
  std::map<std::string, std::size_t> placements_;  // indices into candidates_
};

}  // namespace

std::size_t candidates_from(const std::string& place, std::uint64_t count)
{
  if (count >= 1 && count <= allocators::most_candidates) return count;
  throw InputError(place, fmt::format("{} is not in 1 to {}", count, allocators::most_candidates));
}

Plan choose_by_simulation(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                          const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits)
{
  const auto each = share_of(limits, splits);
  Choice choice(inputs, allocator, each);
  choice.plan(goal, splits);
  try {
    choice.plan_by_rivals(goal, splits);
    choice.simulate();
  } catch (const Interrupted&) {
    // What was found so far is returned.
  }
  return choice.best();
}

Plan choose_own_by_simulation(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits)
{
  const auto each = share_of(limits, splits);
  Choice choice(inputs, allocator, each);
  choice.plan(goal, splits);
  choice.simulate();
  return choice.best();
}

}  // namespace isobar::cli
