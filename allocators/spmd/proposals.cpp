#include "allocators/spmd/proposals.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/spmd/buckets.hpp"
#include "allocators/spmd/pipeline_search.hpp"
#include "allocators/spmd/spmd_plan.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/model/routing.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/player.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
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

/// The devices of each site; of a site, the faster ones first.
std::vector<Devices> sites_of(const HybridProblem& problem)
{
  const auto& devices = problem.cluster.devices;
  std::map<std::string, Devices> by_name;
  for (std::size_t i = 0; i < devices.size(); ++i) by_name[devices[i].site].push_back(i);
  std::vector<Devices> sites;
  for (auto& [name, site] : by_name) {
    std::stable_sort(site.begin(), site.end(), [&](std::size_t a, std::size_t b) {
      return devices[a].speed_at(problem.workload.dtype) > devices[b].speed_at(problem.workload.dtype);
    });
    sites.push_back(std::move(site));
  }
  return sites;
}

/// The ways to let sites of as many devices each compute other samples: each as a replica, or as several of as many
/// devices. They need a number of samples that they can divide evenly.
std::vector<spmd::Replicas> replicas_of(const HybridProblem& problem)
{
  const auto sites = sites_of(problem);
  const std::size_t count = sites.front().size();
  const auto is_like_first = [&](const Devices& site) { return site.size() == count; };
  if (sites.size() == 1 || !std::all_of(sites.begin(), sites.end(), is_like_first)) return {};
  const std::uint64_t samples = problem.workload.micro_batch;
  const std::uint64_t least = std::get<isobar::spmd::MoeSizes>(problem.workload.model).routing.capacity_samples;
  std::vector<spmd::Replicas> ways;
  for (std::size_t parts = 1; 2 * parts <= count; ++parts) {
    const std::size_t replicas = parts * sites.size();
    if (count % parts != 0 || samples % (replicas * least) != 0) continue;
    auto& way = ways.emplace_back();
    for (const auto& site : sites) {
      for (std::size_t first = 0; first < count; first += count / parts) {
        const auto begin = site.begin() + static_cast<std::ptrdiff_t>(first);
        way.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(count / parts));
      }
    }
  }
  return ways;
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

std::vector<std::vector<Shard>> shards_on(const spmd::Replicas& replicas, const std::vector<double>& shares,
                                          const HybridProblem& problem)
{
  const CostModel cost(problem.workload, problem.cluster);
  std::vector<std::vector<Shard>> shards;
  for (const auto& devices : replicas) {
    auto& its = shards.emplace_back();
    for (std::size_t i = 0; i < devices.size(); ++i) {
      its.push_back(shard_on(cost, devices[i]));
      its.back().share = shares[i];
    }
  }
  return shards;
}

Plan plan_of(const spmd::SpmdPlan& found, const spmd::Replicas& replicas, const HybridProblem& problem)
{
  Plan plan;
  plan.goal = problem.goal;
  plan.stages = stages_of(operator_graph_of(problem.workload).value(), {found.cuts, found.signatures},
                          {{found.cuts.size(), shards_on(replicas, found.shares, problem)}});
  return plan;
}

Plan plan_of(const spmd::SpmdPipeline& found, const HybridProblem& problem)
{
  std::vector<GroupDevices> groups;
  for (const auto& [devices, shares, end_part] : found.groups) {
    groups.push_back({end_part, shards_on({devices}, shares, problem)});
  }
  Plan plan;
  plan.goal = problem.goal;
  plan.stages = stages_of(operator_graph_of(problem.workload).value(), {found.cuts, found.signatures}, groups);
  return plan;
}

Plan baseline(spmd::Baseline kind, const HybridProblem& problem)
{
  const DivisionProblem division(problem);
  const Devices devices = all_devices(problem.cluster);
  const auto plan = baseline_plan(kind, division.step, problem.workload, problem.cluster, devices, division.options);
  return plan_of(plan, {devices}, problem);
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

/// The step of a plan as its program plays it.
Seconds played_step(const Plan& plan, const HybridProblem& problem)
{
  const PlayerRates rates = nominal_rates(plan, problem.cluster);
  return play_program(*schedules::make_program(plan, problem.workload, problem.cluster), rates)
      .periods.front()
      .step_time;
}

/// The proposals of one problem.
class DivisionProposals {
 public:
  explicit DivisionProposals(const HybridProblem& problem)
      : problem_(problem), division_(problem), cost_(problem.workload, problem.cluster)
  {
  }

  Proposals all()
  {
    for (const Devices& devices : groups_of(problem_)) propose(division_.step, {devices});
    for (const spmd::Replicas& replicas : replicas_of(problem_)) {
      const std::uint64_t samples = problem_.goal.microbatches * problem_.workload.micro_batch / replicas.size();
      propose(operator_graph_of(problem_.workload, samples), replicas);
    }
    propose_pipeline();
    if (proposals_.plans.empty()) {
      proposals_.reason = "no way to divide the operators fits in the memory of the devices";
    }
    proposals_.plans.push_back(plan_of_ddp(problem_));
    return std::move(proposals_);
  }

 private:
  void propose(const isobar::spmd::OperatorGraph& graph, const spmd::Replicas& replicas)
  {
    if (!propose(graph, replicas, division_.options)) return;
    // The shares of least cost may not be those of the shortest step, as its program plays it.
    for (const ShareRule rule : {ShareRule::Even, ShareRule::Speed}) {
      spmd::SpmdOptions options = division_.options;
      options.shares = rule;
      propose(graph, replicas, options);
    }
  }

  /// Returns whether the search chose among shares.
  bool propose(const isobar::spmd::OperatorGraph& graph, const spmd::Replicas& replicas,
               const spmd::SpmdOptions& options)
  {
    const auto found = find_spmd_plan(graph, problem_.workload, problem_.cluster, replicas, options);
    if (!found) return false;
    Plan plan = plan_of(*found, replicas, problem_);
    Plan priced = plan;
    if (!price(priced, cost_)) least_step_ = std::min(least_step_, *priced.objective);
    proposals_.plans.push_back(std::move(plan));
    return found->turns > 0;
  }

  /// A pipeline of the sites. With one wave, they would compute one after the other.
  void propose_pipeline()
  {
    const auto sites = sites_of(problem_);
    const std::uint64_t microbatches = problem_.goal.microbatches;
    if (sites.size() == 1 || (spmd::waves_of(microbatches) == 1 && !proposals_.plans.empty())) return;
    const auto found = find_spmd_pipeline(problem_.workload, problem_.cluster, sites, microbatches, division_.options);
    if (!found) return;
    Plan plan = plan_of(*found, problem_);
    if (played_step(plan, problem_) < least_step_) proposals_.plans.push_back(std::move(plan));
  }

  const HybridProblem& problem_;
  DivisionProblem division_;
  CostModel cost_;
  Proposals proposals_;
  Seconds least_step_ = Seconds(std::numeric_limits<double>::infinity());  // of those plans that fit, without pipelines
};

}  // namespace

Proposals propose_divisions(const HybridProblem& problem)
{
  return DivisionProposals(problem).all();
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
