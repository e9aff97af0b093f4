#include "core/check/dtfm_cost.hpp"

#include "core/model/layer_graph.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace isobar {

std::optional<std::string> fault_of_dtfm_stages(const Plan& plan)
{
  constexpr auto rule =
      "objective dtfm is for stages with as many replicas, each of one device and as many micro-batches";
  const std::size_t replicas = plan.stages.front().replicas.size();
  if (replicas == 0) return fmt::format("stages[0]: no replicas; {}", rule);
  std::set<std::string> devices;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const auto& of_stage = plan.stages[i].replicas;
    if (of_stage.size() != replicas) {
      return fmt::format("stages[{}]: {}, and the first stage has {}; {}", i, counted(of_stage.size(), "replica"),
                         replicas, rule);
    }
    for (std::size_t k = 0; k < replicas; ++k) {
      const auto& [taken, shards] = of_stage[k];
      if (shards.size() != 1) {
        return fmt::format("stages[{}].replicas[{}]: {}; {}", i, k, counted(shards.size(), "shard"), rule);
      }
      if (replicas > 1 && taken * replicas != plan.goal.microbatches) {
        return fmt::format("stages[{}].replicas[{}].microbatches: {} of {}; {}", i, k, taken, plan.goal.microbatches,
                           rule);
      }
      if (!devices.insert(shards.front().device).second) {
        return fmt::format("stages[{}]: device {} has a stage already; {}", i, shown(shards.front().device), rule);
      }
    }
  }
  return std::nullopt;
}

DtFmFacts dtfm_facts(const Plan& plan, const Workload& workload)
{
  DtFmFacts facts{plan.stages.size(), plan.stages.front().replicas.size(), {}, {}};
  const auto replicas = static_cast<double>(facts.replicas);
  const Boundaries cuts = boundaries_of(workload);
  for (const Stage& stage : plan.stages) {
    double gradients = 0;
    for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
      gradients += 4 * static_cast<double>(workload.layers[k].parameters);  // float32
    }
    facts.exchanged = std::max(facts.exchanged, Bytes(gradients / replicas));
    if (&stage == &plan.stages.front()) continue;
    const Bytes larger = std::max(cuts.output[stage.first_layer], cuts.gradient[stage.first_layer]);
    facts.passed = std::max(facts.passed, larger * (static_cast<double>(plan.goal.microbatches) / replicas));
  }
  return facts;
}

double exchange_s(const Path& path, const DtFmFacts& facts)
{
  return 2 * (path.latency.value + (facts.exchanged / path.bandwidth).value);
}

double pass_s(const Path& path, const DtFmFacts& facts)
{
  return path.latency.value + (facts.passed / path.bandwidth).value;
}

double dtfm_cost(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  const DtFmFacts facts = dtfm_facts(plan, workload);
  std::vector<std::size_t> before;
  double longest_sync = 0;
  double passes = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<std::size_t> devices;
    for (const auto& replica : stage.replicas) {
      devices.push_back(cluster.device_index(replica.shards.front().device).value());
    }
    for (const std::size_t device : devices) {
      double sync = 0;
      for (const std::size_t other : devices) {
        if (other != device) sync += exchange_s(cluster.path(device, other), facts);
      }
      longest_sync = std::max(longest_sync, sync);
    }
    double slowest = 0;
    for (std::size_t k = 0; k < before.size(); ++k) {
      slowest = std::max(slowest, pass_s(cluster.path(before[k], devices[k]), facts));
    }
    passes += slowest;
    before = std::move(devices);
  }
  return longest_sync + 2 * passes;
}

}  // namespace isobar
