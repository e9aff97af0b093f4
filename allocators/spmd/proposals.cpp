#include "allocators/spmd/proposals.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/spmd/spmd_plan.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace isobar::allocators {

namespace {

/// A problem as the searches of this room take it.
struct DivisionProblem {
  explicit DivisionProblem(const HybridProblem& problem)
      : sizes(std::get<isobar::spmd::MoeSizes>(problem.workload.model)),
        step(operator_graph_of(problem.workload, problem.goal.microbatches * problem.workload.micro_batch))
  {
    if (problem.cluster.data_server) {
      throw InputError("platform",
                       "has a data server, and devices that divide operators have their data; leave it out");
    }
    if (!problem.workload.recompute.empty()) {
      throw InputError("recompute", "devices that divide operators keep their activations; leave it out");
    }
    options.microbatches = {problem.goal.microbatches};
    options.shares = problem.limits.shares;
    options.rules = isobar::spmd::rules_of(sizes);
  }

  isobar::spmd::MoeSizes sizes;
  isobar::spmd::OperatorGraph step;  // of all its samples
  spmd::SpmdOptions options;
};

using Devices = std::vector<std::size_t>;

Devices all_devices(const Cluster& cluster)
{
  Devices devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), std::size_t{0});
  return devices;
}

/// Groups of devices that may divide operators: all, those of each site, and the fastest one. Devices that are left out
/// take part in no collective.
std::vector<Devices> groups_of(const HybridProblem& problem)
{
  const auto& devices = problem.cluster.devices;
  const Devices all = all_devices(problem.cluster);
  std::vector<Devices> groups = {all};
  std::map<std::string, Devices> sites;
  for (const std::size_t device : all) sites[devices[device].site].push_back(device);
  for (auto& [site, of_site] : sites) {
    if (sites.size() > 1) groups.push_back(std::move(of_site));
  }
  const auto fastest = std::max_element(devices.begin(), devices.end(), [&](const Device& a, const Device& b) {
    return a.speed_at(problem.workload.dtype) < b.speed_at(problem.workload.dtype);
  });
  if (devices.size() > 1) groups.push_back({static_cast<std::size_t>(fastest - devices.begin())});
  return groups;
}

Plan plan_of(const spmd::SpmdPlan& found, const Devices& devices, const HybridProblem& problem)
{
  const CostModel cost(problem.workload, problem.cluster);
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    shards.push_back(shard_on(cost, devices[i]));
    shards.back().share = found.shares[i];
  }
  Plan plan;
  plan.goal = problem.goal;
  plan.stages = stages_of(operator_graph_of(problem.workload).value(), {found.cuts, found.signatures}, shards);
  return plan;
}

Proposals baseline(spmd::Baseline kind, const HybridProblem& problem)
{
  const DivisionProblem division(problem);
  const Devices devices = all_devices(problem.cluster);
  const auto plan = baseline_plan(kind, division.step, problem.workload, problem.cluster, devices, division.options);
  return {.plans = {plan_of(plan, devices, problem)}};
}

}  // namespace

Proposals propose_divisions(const HybridProblem& problem)
{
  const DivisionProblem division(problem);
  Proposals proposals;
  for (const Devices& devices : groups_of(problem)) {
    const auto plan = find_spmd_plan(division.step, problem.workload, problem.cluster, devices, division.options);
    if (plan) proposals.plans.push_back(plan_of(*plan, devices, problem));
  }
  if (proposals.plans.empty()) proposals.reason = "no way to divide the operators fits in the memory of the devices";
  return proposals;
}

Proposals propose_even_samples(const HybridProblem& problem)
{
  return baseline(spmd::Baseline::DpEv, problem);
}

Proposals propose_samples_by_speed(const HybridProblem& problem)
{
  return baseline(spmd::Baseline::DpCp, problem);
}

}  // namespace isobar::allocators
