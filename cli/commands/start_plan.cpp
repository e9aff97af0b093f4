#include "cli/commands/start_plan.hpp"

#include "cli/planning/planning.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/plan_file.hpp"

#include <fmt/format.h>

#include <map>

namespace isobar::cli {

Plan read_start(const std::string& file)
{
  Plan plan = schedules::read_scheduled_plan(file);
  if (plan.stages.empty()) throw InputError(file, "stages: none; a search starts from a plan that has some");
  require_on_devices(plan, file, "--start");
  if (divides_operators(plan)) {
    throw InputError(file,
                     "stages: divide operators one by one; a search starts from a plan of whole layers or shards");
  }
  return plan;
}

bool has_only_cuts_to_move(const Plan& start)
{
  return has_shared_stages(start) || devices_of(start).size() != start.stages.size();
}

void refuse_goal_beside(const Plan& start, const std::string& file, const GoalOptions& goal,
                        const std::vector<std::string>& others)
{
  if (!has_only_cuts_to_move(start)) return;
  std::map<std::string, bool> given = {{"--communication", goal.communication.has_value()},
                                       {"--schedule", !goal.schedules.empty()},
                                       {"--warm-up", goal.warm_up.has_value()},
                                       {"--chunks", goal.chunks.has_value()},
                                       {"--microbatch-group", goal.microbatch_group.has_value()},
                                       {"--overlap-experts", goal.overlap_experts},
                                       {"--microbatches", goal.microbatches.has_value()},
                                       {"--global-batch", goal.global_batch.has_value()},
                                       {"--recompute", goal.recompute.has_value()}};
  for (const auto& option : others) given[option] = true;
  for (const auto& [option, is_given] : given) {
    if (is_given)
      throw InputError(option, fmt::format("{} says it, whose cuts alone move; leave it out", on_one_line(file)));
  }
}

void check_start(const Plan& start, const std::string& file, const Inputs& inputs)
{
  auto faults = all_faults_of(start, inputs.workload, inputs.platform.cluster());
  for (auto& fault : faults) fault = on_one_line(file) + ": " + fault;
  if (!faults.empty()) throw InputError(faults);
}

void start_from(const Plan& start, const Inputs& inputs, allocators::SearchLimits& limits)
{
  if (has_only_cuts_to_move(start)) {
    limits.start_plan = start;
    return;
  }
  for (const auto& stage : start.stages) {
    limits.start.push_back(
        {inputs.platform.cluster().device_index(stage.device()).value(), stage.first_layer, stage.last_layer});
  }
}

}  // namespace isobar::cli
