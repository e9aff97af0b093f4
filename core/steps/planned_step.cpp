#include "core/steps/planned_step.hpp"

#include "core/plan/operator_plan.hpp"
#include "core/steps/operator_steps.hpp"
#include "core/steps/pipeline_steps.hpp"

#include <algorithm>
#include <cmath>

namespace isobar {

namespace {

/// Whether a stage of a chain forwards next, by how far it is ahead of its backward passes.
bool forwards_next(ChainSchedule schedule, std::uint64_t ahead, std::size_t stages_left)
{
  switch (schedule) {
    case ChainSchedule::Sequential:
      return ahead == 0;
    case ChainSchedule::GPipe:
      return true;
    case ChainSchedule::OneForwardOneBackward:
      return ahead < stages_left;
  }
  return true;
}

}  // namespace

std::vector<std::vector<StagePass>> passes_of(const Program& program)
{
  std::vector<std::vector<StagePass>> passes(program.ranks());
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
      const Instruction instruction = program.at(rank, compute_lane, position);
      if (!is_pass(instruction.opcode)) continue;
      passes[rank].push_back({instruction.opcode, instruction.stage, instruction.microbatch});
    }
  }
  return passes;
}

std::vector<std::vector<StagePass>> passes_of_chain(const Plan& plan)
{
  const ChainSchedule schedule = chain_schedule(plan.goal.schedule).value();
  const std::uint64_t microbatches = plan.goal.microbatches;
  std::vector<std::vector<StagePass>> passes(plan.stages.size());
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    std::uint64_t forwards = 0;
    for (std::uint64_t backwards = 0; backwards < microbatches;) {
      const bool forwards_now =
          forwards < microbatches && forwards_next(schedule, forwards - backwards, plan.stages.size() - stage);
      if (forwards_now) {
        passes[stage].push_back({Opcode::Forward, stage, forwards++});
        continue;
      }
      const std::uint64_t next = schedule == ChainSchedule::GPipe ? microbatches - 1 - backwards : backwards;
      passes[stage].push_back({Opcode::Backward, stage, next});
      ++backwards;
    }
  }
  return passes;
}

StepGraph::Paths paths_between(const Plan& plan, const Cluster& cluster)
{
  if (plan.goal.has_free_transfers()) return {};
  return [&cluster](std::size_t from, std::size_t to) {
    const Path path = cluster.path(from, to);
    return GraphPath{path.latency.value, path.bandwidth.value, cluster.network->shared_links(from, to)};
  };
}

double play_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                 const std::vector<std::vector<StagePass>>& passes, double stretch)
{
  if (divides_operators(plan)) return OperatorSteps(plan, workload, cluster, passes, stretch).play();
  return PipelineSteps(plan, workload, cluster, passes, stretch).play();
}

}  // namespace isobar
