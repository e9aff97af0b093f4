#pragma once

#include "allocators/played_plan.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/instances.hpp"

#include <string>
#include <vector>

/// The step of a plan: as allocators predict it, as the checker accepts it, and as simulated.
namespace isobar::predictions {

/// Writes the claims of a plan as allocators do.
inline void predict(Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (!is_chain(plan)) return allocators::price_by_playing(plan, workload, cluster);
  std::vector<StagePlacement> stages;
  for (const auto& stage : plan.stages) {
    stages.push_back({cluster.device_index(stage.device()).value(), stage.first_layer, stage.last_layer});
  }
  plan = testing_support::plan_of(stages, CostModel(workload, cluster), plan.goal);
  allocators::play_chain(plan, workload, cluster);
}

/// What the checker finds wrong with the claims of a plan.
inline std::vector<std::string> faults_of_claims(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  auto found = faults_of(plan, workload, cluster);
  if (!found.empty() || is_chain(plan)) return found;
  return faults_of_played(plan, workload, cluster, *schedules::make_program(plan, workload, cluster));
}

inline Seconds simulated_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                              const sim::Platform& platform)
{
  const auto program = schedules::make_program(plan, workload, cluster);
  const CountedStep counted = counted_step(plan);
  const auto hosts = sim::rank_hosts(plan, cluster);
  return sim::simulate(platform, *program, hosts, counted.played(), nullptr).step_times.at(counted.before);
}

}  // namespace isobar::predictions
