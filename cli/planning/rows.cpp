#include "cli/planning/rows.hpp"

#include "allocators/registry.hpp"
#include "cli/goal_options.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulated_choice.hpp"
#include "cli/planning/simulation.hpp"
#include "core/base/child_process.hpp"
#include "core/base/progress_line.hpp"
#include "core/compute/layer_noise.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <algorithm>
#include <thread>

namespace isobar::cli {

namespace {

using results::ComparisonRow;

/// Processor time of this process and of the children that it has waited for, such as an external allocator.
Seconds processor_time()
{
  const auto seconds_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  Seconds sum;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    getrusage(who, &usage);
    sum += Seconds(seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime));
  }
  return sum;
}

std::string answer_of(const Inputs& inputs, const Plan& plan, Seconds plan_time)
{
  nlohmann::json answer = {{"plan", plan_to_json(plan)}, {"plan_time_s", plan_time.value}};
  if (!plan.stages.empty()) answer["result"] = simulate_plan(inputs, plan, 1, "");
  return json_line(answer);
}

}  // namespace

void add_row_time_limit(CLI::App& command, std::string& text)
{
  command
      .add_option("--row-time-limit", text,
                  "time that planning and simulating one row may take, such as 30s; a row that exceeds it fails")
      ->capture_default_str();
}

Seconds row_time_limit_from(const std::string& text)
{
  const Seconds limit = seconds_from_option("--row-time-limit", text);
  if (limit <= Seconds(0)) throw InputError("--row-time-limit", "0 s leaves no time to plan; raise it");
  return limit;
}

ComparisonRow pending_row(const InputOptions& inputs, const std::string& allocator, const Goal& goal,
                          const std::string& recompute, std::uint64_t seed)
{
  ComparisonRow row;
  row.platform = inputs.platform;
  row.workload = text_of(Fingerprint{inputs.workload, "", inputs.settings});
  row.allocator = allocator;
  row.goal = goal;
  row.recompute = recompute;
  row.seed = seed;
  row.outcome = results::failed_outcome;
  row.reason = "interrupted";
  return row;
}

std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits)
{
  const Seconds begin = processor_time();
  const auto choose = limits.candidates > 1 ? choose_own_by_simulation : make_best_plan;
  const Plan plan = choose(inputs, allocator, goal, limits, splits);
  return answer_of(inputs, plan, processor_time() - begin);
}

std::string plan_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits)
{
  return plan_and_simulate(inputs, allocator, goal, limits, {{goal.microbatches, inputs.workload.micro_batch}});
}

std::string simulate_given(const Inputs& inputs, const Plan& plan)
{
  return answer_of(inputs, plan, Seconds(0));
}

std::string plan_by_belief_and_simulate(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                                        const allocators::SearchLimits& limits, const Belief& belief,
                                        std::uint64_t seed)
{
  const Seconds begin = processor_time();
  const Cluster& cluster = inputs.platform.cluster();
  const Plan believed = allocators::allocate(allocator, with_noise(inputs.workload, belief.layer_noise, seed),
                                             scaled(cluster, belief.cluster), goal, limits);
  const Seconds plan_time = processor_time() - begin;
  Plan plan = allocators::priced_for(believed, inputs.workload, cluster);
  record_inputs(plan, inputs, inputs.workload.micro_batch);
  return answer_of(inputs, plan, plan_time);
}

RowAnswer fill_row(ComparisonRow& row, const std::string& answer_json)
{
  const auto json = nlohmann::json::parse(answer_json);
  RowAnswer answer{plan_from_json(json["plan"].get<std::string>(), "plan"), json.value("result", "")};
  const Plan& plan = answer.plan;
  const ScheduleChoice asked = row.goal.schedule;  // a plan has numbers where it asks for "auto"
  row.goal = plan.goal;
  row.goal.schedule = asked;
  row.micro_batch = plan.micro_batch;
  row.routing = plan.routing;
  row.uses_machines = uses_machines(plan);
  row.outcome = name_of(plan.outcome);
  row.reason = plan.reason;
  row.stages = plan.stages.empty() ? 0 : pipeline_stages(plan).back() + 1;
  for (const auto& stage : plan.stages) {
    row.replicas = std::max(row.replicas, stage.replicas.size());
    for (const auto& replica : stage.replicas) row.shards = std::max(row.shards, replica.shards.size());
  }
  row.objective = plan.objective;
  row.objective_bound = plan.objective_bound;
  row.step_bound = plan.step_bound;
  row.plan_time = Seconds(json["plan_time_s"].get<double>());
  if (plan.predicted) row.bottleneck = plan.predicted->bottleneck;
  if (answer.result.empty()) return answer;
  const auto result = nlohmann::json::parse(answer.result);
  row.step_time = Seconds(result["step_time_s"].get<double>());
  Bytes peak;
  for (const auto& stage : result["stages"]) {
    peak = std::max(peak, Bytes(stage["peak_memory_bytes"].get<double>()));
  }
  row.peak_memory = peak;
  const auto ratio = [&result](const char* key) {
    return result[key].is_null() ? std::nullopt : std::optional(result[key].get<double>());
  };
  row.utilization = {ratio("tokens_per_s"), ratio("mfu_fraction"), ratio("bubble_fraction")};
  return answer;
}

bool has_failed(const ComparisonRow& row)
{
  return row.outcome == results::failed_outcome;
}

ExitCode exit_code_of(const std::vector<ComparisonRow>& rows)
{
  const auto any = [&rows](auto predicate) { return std::any_of(rows.begin(), rows.end(), predicate); };
  if (any([](const auto& row) { return row.step_time.has_value(); })) return ExitCode::Done;
  return any(has_failed) ? ExitCode::EnvironmentError : ExitCode::Infeasible;
}

void make_rows(const std::string& what, std::vector<ComparisonRow>& rows,
               const std::vector<std::function<std::string()>>& work, Seconds row_time_limit, const OnPlan& on_plan)
{
  ProgressLine progress(what, work.size());
  std::size_t ended = 0;
  run_in_children(work, std::thread::hardware_concurrency(), {row_time_limit, "--row-time-limit"},
                  [&](std::size_t index, const ChildResult& result) {
                    ComparisonRow& row = rows[index];
                    if (result.failure) {
                      row.reason = result.failure->text;
                    } else {
                      const RowAnswer answer = fill_row(row, result.output);
                      if (on_plan) on_plan(row, answer);
                    }
                    progress.done(++ended);
                  });
}

}  // namespace isobar::cli
