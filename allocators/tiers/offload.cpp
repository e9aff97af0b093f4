#include "allocators/tiers/offload.hpp"

#include "allocators/played_plan.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/tiers/tier_plans.hpp"
#include "allocators/tiers/window.hpp"
#include "allocators/tiers/window_costs.hpp"
#include "core/costs/cost_model.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace isobar::allocators {

namespace {

/// Windows leave out what a pipeline adds to a device: so often less memory is tried for those that exceed theirs.
constexpr int most_corrections = 6;
constexpr std::size_t most_moves = 400;
constexpr std::size_t least_layers = 3;

/// The devices of the plan in each machine.
std::map<std::size_t, std::size_t> devices_by_machine(const std::vector<std::string>& names, const Cluster& cluster)
{
  std::map<std::size_t, std::size_t> count;
  for (const auto& name : names) {
    const auto& machine = cluster.devices[cluster.device_index(name).value()].machine;
    if (machine) ++count[machine->machine];
  }
  return count;
}

/// Devices that have their part of what their machines hold.
Cluster with_machine_memory(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) names.push_back(device.name);
  const auto shared = devices_by_machine(names, cluster);
  Cluster roomy = cluster;
  for (auto& device : roomy.devices) {
    if (!device.machine) continue;
    const Machine& machine = cluster.machines.at(device.machine->machine);
    const Bytes all = machine.memory + (machine.disk ? machine.disk->capacity : Bytes(0));
    device.memory += all * (1.0 / static_cast<double>(shared.at(device.machine->machine)));
  }
  return roomy;
}

/// Layers first..last as a workload of their own, without the matrices of earlier ones.
Workload layers_between(const Workload& workload, const Boundaries& cuts, std::size_t first, std::size_t last)
{
  Workload part = workload;
  part.layers.assign(workload.layers.begin() + static_cast<std::ptrdiff_t>(first),
                     workload.layers.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  for (auto& layer : part.layers) {
    std::vector<std::size_t> inputs;
    for (const std::size_t input : layer.inputs) {
      if (input >= first) inputs.push_back(input - first);
    }
    layer.inputs = std::move(inputs);
    if (layer.tied_to && *layer.tied_to < first) {
      layer.tied_to.reset();
    } else if (layer.tied_to) {
      *layer.tied_to -= first;
    }
  }
  for (auto& [type, own] : part.times) {
    own.assign(own.begin() + static_cast<std::ptrdiff_t>(first), own.begin() + static_cast<std::ptrdiff_t>(last) + 1);
  }
  part.recompute.clear();
  for (const std::size_t layer : workload.recompute) {
    if (layer >= first && layer <= last) part.recompute.push_back(layer - first);
  }
  part.input = cuts.output[first];
  return part;
}

class Offloads {
 public:
  explicit Offloads(const HybridProblem& problem)
      : problem_(problem),
        cost_(problem.workload, problem.cluster),
        cuts_(boundaries_of(problem.workload)),
        clock_(problem.limits)
  {
  }

  /// Why the last plan that does not fit does not.
  const std::string& reason() const { return reason_; }

  /// The plan with its cuts moved and windows where stages need them; none if it does not fit all the same.
  std::optional<Plan> fitted(Plan stages)
  {
    for (auto& stage : stages.stages) {
      for (auto& replica : stage.replicas) {
        for (auto& shard : replica.shards) {
          shard.memory = problem_.cluster.devices[problem_.cluster.device_index(shard.device).value()].memory;
        }
      }
    }
    auto best = priced(stages);
    if (!best) return std::nullopt;
    std::size_t moves = 0;
    for (bool is_better = true; is_better;) {
      is_better = false;
      for (auto& next : moved(stages)) {
        if (clock_.is_over() || moves++ >= most_moves) return best;
        auto found = priced(next);
        if (!found || *found->objective >= *best->objective * (1 - 1e-9)) continue;
        stages = std::move(next);
        best = std::move(found);
        is_better = true;
        break;
      }
    }
    return best;
  }

 private:
  /// The plan with one cut between neighbouring stages before or after where it is.
  std::vector<Plan> moved(const Plan& plan) const
  {
    std::vector<Plan> plans;
    const auto& cuts = problem_.view.first_layer;
    for (std::size_t i = 0; i + 1 < plan.stages.size(); ++i) {
      const auto at = std::lower_bound(cuts.begin(), cuts.end(), plan.stages[i + 1].first_layer);
      for (const auto& cut : {std::prev(at), std::next(at)}) {
        if (*cut <= plan.stages[i].first_layer || *cut > plan.stages[i + 1].last_layer) continue;
        Plan& next = plans.emplace_back(plan);
        next.stages[i].last_layer = *cut - 1;
        next.stages[i + 1].first_layer = *cut;
      }
    }
    return plans;
  }

  /// The plan with windows, priced; none if a device or a machine holds too little.
  std::optional<Plan> priced(const Plan& stages)
  {
    const auto shared = devices_by_machine(devices_of(stages), problem_.cluster);
    std::map<std::string, Bytes> beyond;  // what a pipeline needs on a device that its window does not count
    for (int i = 0; i < most_corrections; ++i) {
      Plan plan;
      plan.goal = problem_.goal;
      plan.sync = stages.sync;
      plan.recompute = problem_.workload.recompute;
      plan.data_server = problem_.cluster.data_server;
      for (const auto& stage : stages.stages) {
        auto parts = windowed(stages, stage, shared, beyond);
        if (!parts) return std::nullopt;
        plan.stages.insert(plan.stages.end(), parts->begin(), parts->end());
      }
      if (uses_machines(plan)) plan.sync.sharded = Sharding::None;  // which divides what devices hold
      const auto excess = price(plan, cost_);
      if (!excess) return plan;
      reason_ = excess->reason;
      bool is_on_device = !plan.predicted;
      for (const auto& [name, need] : plan.predicted.value_or(Predicted{}).peak_memory) {
        const auto device = problem_.cluster.device_index(name);
        if (!device || need <= problem_.cluster.devices[*device].memory) continue;
        beyond[name] += need - problem_.cluster.devices[*device].memory;
        is_on_device = true;
      }
      if (!is_on_device || !plan.predicted) return std::nullopt;
    }
    return std::nullopt;
  }

  /// The stage as it fits on its devices, layer by layer where some pass; none if it cannot.
  std::optional<std::vector<Stage>> windowed(const Plan& plan, const Stage& stage,
                                             const std::map<std::size_t, std::size_t>& shared,
                                             const std::map<std::string, Bytes>& beyond)
  {
    const std::vector<Stage> whole = {stage};
    if (stage.last_layer - stage.first_layer + 1 < least_layers) return whole;
    std::optional<std::size_t> least;
    std::uint64_t microbatches = 1;
    Bytes taken;
    for (const auto& replica : stage.replicas) {
      const std::size_t index = problem_.cluster.device_index(replica.shards.front().device).value();
      const Device& device = problem_.cluster.devices[index];
      const auto stages = std::count_if(plan.stages.begin(), plan.stages.end(), [&](const Stage& other) {
        return std::any_of(other.replicas.begin(), other.replicas.end(), [&](const Replica& one) {
          return std::any_of(one.shards.begin(), one.shards.end(),
                             [&](const Shard& shard) { return shard.device == device.name; });
        });
      });
      if (replica.shards.size() > 1 || stages > 1 || !device.machine) return whole;
      microbatches =
          std::max(microbatches, replica.microbatches > 0 ? replica.microbatches : problem_.goal.microbatches);
      const auto more = beyond.find(device.name);
      if (more != beyond.end()) taken = std::max(taken, more->second);
      if (!least || device.memory < problem_.cluster.devices[*least].memory) least = index;
    }
    const Device& device = problem_.cluster.devices[*least];
    const auto key = std::tuple(stage.first_layer, stage.last_layer, *least, microbatches,
                                shared.at(device.machine->machine), taken.value);
    auto known = windows_.find(key);
    if (known == windows_.end()) {
      known = windows_.emplace(key, window_of(stage, device, microbatches, shared.at(device.machine->machine), taken))
                  .first;
    }
    if (known->second.empty()) return std::nullopt;
    std::vector<Stage> parts = known->second;
    for (auto& part : parts) part.replicas = stage.replicas;
    return parts;
  }

  /// The layers of a stage with what the search for windows says of them; none if nothing fits.
  std::vector<Stage> window_of(const Stage& stage, const Device& device, std::uint64_t microbatches,
                               std::size_t devices_of_machine, Bytes taken)
  {
    Cluster alone = problem_.cluster;
    alone.devices = {device};
    alone.devices.front().memory = std::max(Bytes(0), device.memory - taken);
    alone.devices.front().machine->machine = 0;
    Machine machine = problem_.cluster.machines.at(device.machine->machine);
    const double part = 1.0 / static_cast<double>(devices_of_machine);
    machine.memory = machine.memory * part;
    if (machine.disk) machine.disk->capacity = machine.disk->capacity * part;
    alone.machines = {std::move(machine)};
    const Workload layers = layers_between(problem_.workload, cuts_, stage.first_layer, stage.last_layer);
    const WindowCosts costs(layers, alone, 0, microbatches, "");
    SearchClock clock(problem_.limits);
    const auto shape = best_window(costs, clock);
    if (!shape) {
      reason_ = what_lacks(costs, nearest_window(costs));
      return {};
    }
    std::vector<Stage> stages = costs.stages_of(*shape);
    for (auto& each : stages) {
      each.first_layer += stage.first_layer;
      each.last_layer += stage.first_layer;
    }
    return stages;
  }

  const HybridProblem& problem_;
  CostModel cost_;
  Boundaries cuts_;
  SearchClock clock_;
  std::string reason_;
  /// By layers, device, micro-batches, devices that share the machine, and memory that is taken.
  std::map<std::tuple<std::size_t, std::size_t, std::size_t, std::uint64_t, std::size_t, double>, std::vector<Stage>>
      windows_;
};

}  // namespace

Proposals propose_offloads(const HybridProblem& problem, const PlansOn& plans_on)
{
  require_passing(problem, "--offload auto");
  Proposals proposals;
  if (kinds_with_machine(problem.cluster).empty()) {
    proposals.reason = reason_of(problem.cluster, {});
    return proposals;
  }
  Offloads offloads(problem);
  std::string reason;  // of the allocator itself
  for (const Plan& plan : plans_on(with_machine_memory(problem.cluster))) {
    proposals.is_cut_short = proposals.is_cut_short || plan.outcome == Outcome::TimedOut;
    if (plan.stages.empty()) {
      reason = "each device with its part of its machine's memory: " + plan.reason;
    } else if (auto fitted = offloads.fitted(plan)) {
      proposals.plans.push_back(std::move(*fitted));
    }
  }
  if (proposals.plans.empty()) proposals.reason = reason.empty() ? offloads.reason() : reason;
  return proposals;
}

}  // namespace isobar::allocators
