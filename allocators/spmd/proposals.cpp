#include "allocators/spmd/proposals.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/spmd/buckets.hpp"
#include "allocators/spmd/spmd_plan.hpp"
#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"
#include "core/model/routing.hpp"
#include "core/plan/operator_plan.hpp"

#include <fmt/format.h>

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

Plan baseline(spmd::Baseline kind, const HybridProblem& problem)
{
  const DivisionProblem division(problem);
  const Devices devices = all_devices(problem.cluster);
  const auto plan = baseline_plan(kind, division.step, problem.workload, problem.cluster, devices, division.options);
  return plan_of(plan, devices, problem);
}

Plan plan_of_ddp(const HybridProblem& problem)
{
  constexpr Bytes first(0x1p20);
  constexpr Bytes others(25 * 0x1p20);
  Plan plan = baseline(spmd::Baseline::DpEv, problem);
  plan.sync.bucket_ends = spmd::bucket_ends_by_size(spmd::gradients_of(plan, problem.workload), first, others);
  spmd::end_parts_with_buckets(plan, problem.workload);
  return plan;
}

/// Why devices do not divide experts and samples alike; empty if they do.
std::string fault_of_experts(const HybridProblem& problem, const isobar::spmd::Routing& routing)
{
  const Workload& workload = problem.workload;
  const std::size_t devices = problem.cluster.devices.size();
  const std::uint64_t experts = std::get<isobar::spmd::MoeSizes>(workload.model).experts;
  if (experts % devices != 0 || experts == 0) {
    return fmt::format("{} for {}, which have as many each; plan for a divisor of them with --without",
                       counted(experts, "expert"), counted(devices, "device"));
  }
  if (workload.micro_batch % devices != 0) {
    return fmt::format("micro-batches of {} for {}, which have as many each; write a multiple as micro_batch",
                       counted(workload.micro_batch, "sample"), counted(devices, "device"));
  }
  return fault_of_routing(workload, routing, workload.micro_batch).value_or("");
}

/// Experts divided among all devices; `by_index`: tokens go to them without slots.
Proposals propose_experts(const HybridProblem& problem, bool by_index, bool adds_replicas)
{
  constexpr double most_elements = 5e8;  // of a bucket
  const Workload& workload = problem.workload;
  const std::uint64_t devices = problem.cluster.devices.size();
  const isobar::spmd::Routing routing{std::max<std::uint64_t>(1, workload.micro_batch / devices), by_index};
  const std::string fault = fault_of_experts(problem, routing);
  if (!fault.empty()) return {.plans = {}, .reason = fault};
  const Workload routed = with_routing(workload, routing, workload.micro_batch);
  Plan plan =
      baseline(spmd::Baseline::ExpertParallel, {routed, problem.view, problem.cluster, problem.goal, problem.limits});
  if (routing != routing_of(workload)) plan.routing = routing;
  plan.sync.adds_replicas = adds_replicas;
  if (adds_replicas) {
    const Bytes cap(most_elements * size_of(workload.dtype));
    // After the backward pass; none is begun before.
    plan.sync.bucket_ends = spmd::bucket_ends_by_size(spmd::gradients_of(plan, routed), cap, cap);
  }
  return {.plans = {plan}};
}

}  // namespace

Proposals propose_divisions(const HybridProblem& problem)
{
  const DivisionProblem division(problem);
  Proposals proposals;
  for (const Devices& devices : groups_of(problem)) {
    const auto propose = [&](const spmd::SpmdOptions& options) {
      const auto plan = find_spmd_plan(division.step, problem.workload, problem.cluster, devices, options);
      if (plan) proposals.plans.push_back(plan_of(*plan, devices, problem));
      return plan && plan->turns > 0;
    };
    if (!propose(division.options)) continue;
    // The shares of least cost may not be those of the shortest step, as its program plays it.
    for (const ShareRule rule : {ShareRule::Even, ShareRule::Speed}) {
      spmd::SpmdOptions options = division.options;
      options.shares = rule;
      propose(options);
    }
  }
  if (proposals.plans.empty()) proposals.reason = "no way to divide the operators fits in the memory of the devices";
  proposals.plans.push_back(plan_of_ddp(problem));
  return proposals;
}

Proposals propose_even_samples(const HybridProblem& problem)
{
  return {.plans = {baseline(spmd::Baseline::DpEv, problem)}};
}

Proposals propose_samples_by_speed(const HybridProblem& problem)
{
  return {.plans = {baseline(spmd::Baseline::DpCp, problem)}};
}

Proposals propose_ddp(const HybridProblem& problem)
{
  return {.plans = {plan_of_ddp(problem)}};
}

Proposals propose_horovod(const HybridProblem& problem)
{
  constexpr Seconds cycle(1e-3);
  constexpr Bytes most(128 * 0x1p20);
  Plan plan = baseline(spmd::Baseline::DpEv, problem);
  plan.sync.bucket_ends =
      spmd::bucket_ends_by_cycle(spmd::played_gradients(plan, problem.workload, problem.cluster), cycle, most);
  spmd::end_parts_with_buckets(plan, problem.workload);
  return {.plans = {plan}};
}

Proposals propose_deepspeed_moe(const HybridProblem& problem)
{
  return propose_experts(problem, false, true);
}

Proposals propose_fastmoe(const HybridProblem& problem)
{
  return propose_experts(problem, true, true);
}

Proposals propose_published_fastmoe(const HybridProblem& problem)
{
  return propose_experts(problem, true, false);
}

}  // namespace isobar::allocators
