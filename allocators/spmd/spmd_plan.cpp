#include "allocators/spmd/spmd_plan.hpp"

#include "allocators/spmd/share_search.hpp"
#include "allocators/spmd/strategy_bound.hpp"
#include "allocators/spmd/strategy_search.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

DeviceGroup group_of(const Cluster& cluster, const std::vector<std::size_t>& devices, Algorithm algorithm)
{
  DeviceGroup group;
  std::vector<Path> paths;
  std::vector<Seconds> starts;
  for (const auto device : devices) {
    group.sites.push_back(cluster.devices[device].site);
    starts.push_back(cluster.devices[device].collective_start);
    for (const auto other : devices) paths.push_back(other == device ? Path{} : cluster.path(device, other));
  }
  group.algorithm = algorithm;
  group.transfer = [paths = std::move(paths), count = devices.size()](std::size_t from, std::size_t to, Bytes size) {
    const Path& path = paths[from * count + to];
    return TransferTimes{path.latency, path.data_time(size)};
  };
  group.shared_links = [devices, network = cluster.network](std::size_t from, std::size_t to) {
    return network->shared_links(devices[from], devices[to]);
  };
  group.start = [starts = std::move(starts)](std::size_t device) { return starts[device]; };
  return group;
}

/// The network of the replica that takes longest to gather some data.
DeviceGroup slowest_group(const Cluster& cluster, const Replicas& replicas, Algorithm algorithm)
{
  constexpr Bytes part(0x1p20);
  const std::vector<Bytes> parts(replicas.front().size(), part);
  DeviceGroup slowest = group_of(cluster, replicas.front(), algorithm);
  for (std::size_t i = 1; i < replicas.size(); ++i) {
    DeviceGroup group = group_of(cluster, replicas[i], algorithm);
    const Seconds time = collective_time(Opcode::AllGather, parts, group);
    if (time > collective_time(Opcode::AllGather, parts, slowest)) slowest = std::move(group);
  }
  return slowest;
}

/// How long the devices at all positions add up gradients at once. Their rings pass the same links between replicas,
/// such as the network card of a node, so that their flows are those of common rounds.
SpmdDevices::Across across(const Cluster& cluster, const Replicas& replicas, Algorithm algorithm)
{
  constexpr Bytes large(0x1p30);
  const std::size_t positions = replicas.front().size();
  std::vector<std::size_t> all;
  for (const auto& replica : replicas) all.insert(all.end(), replica.begin(), replica.end());
  const DeviceGroup group = group_of(cluster, all, algorithm);
  std::vector<std::string> sites;  // of the ends of a ring
  for (std::size_t i = 0; i < replicas.size(); ++i) sites.push_back(group.sites[i * positions]);
  const auto time_of = [&](Bytes size) {
    std::vector<Round> rounds;
    for (const Round& ring :
         rounds_of(Opcode::AllReduce, std::vector<Bytes>(replicas.size(), size), algorithm, sites)) {
      Round& round = rounds.emplace_back();
      for (std::size_t position = 0; position < positions; ++position) {
        for (Flow flow : ring) {
          flow.from = flow.from * positions + position;
          flow.to = flow.to * positions + position;
          round.push_back(flow);
        }
      }
    }
    return collective_time(rounds, EndNetwork{group.transfer, group.shared_links, group.start});
  };
  const Seconds latency = time_of(Bytes(0));
  return {latency, large / (time_of(large) - latency)};
}

SpmdDevices devices_of(const Cluster& cluster, const Replicas& replicas, const Workload& workload,
                       const SpmdOptions& options)
{
  const std::size_t positions = replicas.front().size();
  ensure(options.rates.empty() || options.rates.size() == positions, "rates of each device");
  SpmdDevices result;
  result.rates = options.rates;
  for (std::size_t position = 0; position < positions; ++position) {
    const Device* slowest = nullptr;
    Bytes memory(std::numeric_limits<double>::infinity());
    for (const auto& replica : replicas) {
      ensure(replica.size() == positions, "replicas of as many devices each");
      const Device& its = cluster.devices[replica[position]];
      if (slowest == nullptr || its.speed_at(workload.dtype) < slowest->speed_at(workload.dtype)) slowest = &its;
      memory = std::min(memory, its.memory);
      result.interference = std::max(result.interference, its.interference);
    }
    if (options.rates.empty()) result.rates.push_back(operator_rates_of(workload, *slowest));
    result.memory.push_back(memory);
  }
  result.group = slowest_group(cluster, replicas, options.algorithm);
  if (replicas.size() > 1) result.across = across(cluster, replicas, options.algorithm);
  return result;
}

/// A strategy with its shares and micro-batches.
struct Candidate {
  std::unique_ptr<DividedGraph> divided;
  StrategyProblem problem;
  std::vector<StrategyStage> stages;
  StrategyCost cost;
  bool is_exact = false;
};

bool fits(const StrategyCost& cost, const StrategyProblem& problem)
{
  return std::equal(cost.memory.begin(), cost.memory.end(), problem.memory.begin(), std::less_equal<>());
}

SpmdPlan plan_of(const Candidate& candidate)
{
  SpmdPlan plan;
  plan.shares = candidate.divided->shares();
  plan.microbatches = candidate.divided->microbatches();
  plan.cost = candidate.cost.time;
  plan.fits = fits(candidate.cost, candidate.problem);
  plan.is_exact = candidate.is_exact;
  plan.signatures.resize(candidate.divided->graph().operators.size());
  const std::size_t begin = candidate.divided->run().begin;
  Seconds before_run;  // of stages that make nothing but what the run reads
  for (std::size_t k = 0; k < candidate.stages.size(); ++k) {
    const StrategyStage& stage = candidate.stages[k];
    std::optional<std::size_t> first;
    for (std::size_t i = stage.first; i <= stage.last; ++i) {
      const auto index = candidate.divided->operator_of(i);
      if (!index) continue;
      if (!first && *index >= begin) first = index;
      plan.signatures[*index] = candidate.problem.nodes[i].options[stage.options[i - stage.first]].signature;
    }
    before_run += candidate.cost.stages[k];
    if (!first) continue;
    plan.cuts.push_back(plan.cuts.empty() ? begin : *first);
    plan.part_costs.push_back(std::exchange(before_run, {}));
  }
  for (std::size_t i = 0; i < plan.shares.size(); ++i) {
    plan.memory.push_back(candidate.cost.memory[candidate.divided->kind_of(i)]);
  }
  return plan;
}

class PlanSearch {
 public:
  PlanSearch(const OperatorGraph& graph, const Workload& workload, SpmdDevices devices, const SpmdOptions& options,
             const std::optional<GroupRun>& run = {})
      : graph_(graph), workload_(workload), devices_(std::move(devices)), options_(options), run_(run)
  {
    for (const auto count : options.microbatches) {
      if (samples_of(graph) % count == 0) microbatches_.push_back(count);
    }
  }

  const SpmdDevices& devices() const { return devices_; }

  Candidate begin(std::vector<double> shares, std::uint64_t microbatches) const
  {
    Candidate candidate;
    candidate.divided = std::make_unique<DividedGraph>(graph_, options_.rules, workload_, devices_, std::move(shares),
                                                       microbatches, run_);
    candidate.problem = candidate.divided->problem();
    return candidate;
  }

  /// The best strategy with these shares that fits, of all numbers of micro-batches.
  std::optional<Candidate> best_of(const std::vector<double>& shares)
  {
    std::optional<Candidate> best;
    for (const auto count : microbatches_) {
      Candidate candidate = begin(shares, count);
      auto found = find_fitting(candidate.problem);
      if (!found) continue;
      candidate.stages = std::move(found->stages);
      candidate.cost = std::move(found->cost);
      candidate.is_exact = found->is_exact;
      if (!best || candidate.cost.time < best->cost.time) best = std::move(candidate);
    }
    return best;
  }

  /// The best of strategies and shares in turns, from these shares on.
  std::optional<Candidate> alternate(const std::vector<double>& shares)
  {
    constexpr std::uint64_t most_turns = 16;
    constexpr double least_gain = 1e-6;
    std::optional<Candidate> best = best_of(shares);
    for (std::uint64_t turn = 0; best && turn < most_turns; ++turn) {
      ++turns_;
      const auto next_shares = best_shares(*best->divided, best->problem, best->stages);
      if (!next_shares) break;
      auto next = best_of(*next_shares);
      if (!next || next->cost.time > (1 - least_gain) * best->cost.time) break;
      best = std::move(next);
    }
    return best;
  }

  std::optional<SpmdPlan> run()
  {
    const bool are_equal = begin(even_shares(devices_), 1).divided->kinds().size() == 1;
    const ShareRule rule = are_equal ? ShareRule::Even : options_.shares;
    std::vector<std::vector<double>> beginnings;
    if (rule != ShareRule::Even) beginnings.push_back(shares_by_speed(devices_));
    if (rule != ShareRule::Speed) beginnings.push_back(even_shares(devices_));
    std::optional<Candidate> best;
    for (const auto& shares : beginnings) {
      auto found = rule == ShareRule::Best ? alternate(shares) : best_of(shares);
      if (found && (!best || found->cost.time < best->cost.time)) best = std::move(found);
    }
    if (!best) return std::nullopt;
    SpmdPlan plan = plan_of(*best);
    if (!run_) plan.bound = bound_of(*best);
    plan.counts = counts_;
    plan.turns = turns_;
    return plan;
  }

  /// The bound of all numbers of micro-batches with the shares of a candidate.
  Seconds bound_of(const Candidate& candidate) const
  {
    const auto& compute = candidate.cost.compute;
    const auto kind = static_cast<std::size_t>(std::max_element(compute.begin(), compute.end()) - compute.begin());
    Seconds bound(std::numeric_limits<double>::infinity());
    for (const auto count : microbatches_) {
      const Candidate other = begin(candidate.divided->shares(), count);
      bound = std::min(bound, lower_bound(other.problem, kind));
    }
    return bound;
  }

 private:
  struct Found {
    std::vector<StrategyStage> stages;
    StrategyCost cost;
    bool is_exact = true;
  };

  /// The best strategy without limits is the best with them, if it fits.
  std::optional<Found> find_fitting(StrategyProblem& problem)
  {
    const auto limits = std::exchange(problem.memory, {});
    auto unlimited = find(problem);
    problem.memory = limits;
    if (!unlimited || fits(unlimited->cost, problem)) return unlimited;
    try {
      return find(problem);
    } catch (const TooManyLabels&) {
      problem.memory.clear();
      auto best = find_by_prices(problem, limits, unlimited->cost.time);
      problem.memory = limits;
      return best;
    }
  }

  std::optional<Found> find(const StrategyProblem& problem)
  {
    const bool is_limited = !problem.memory.empty();
    auto strategy = is_limited ? find_strategy(problem, CostFormula::Duplex, options_.most_labels)
                               : find_strategy(problem, CostFormula::Duplex);
    if (!strategy) return std::nullopt;
    counts_.states += strategy->counts.states;
    counts_.labels += strategy->counts.labels;
    Found found{std::move(strategy->stages), {}};
    found.cost = cost_of(problem, CostFormula::Duplex, found.stages);
    return found;
  }

  /// The best fitting strategy of those that are best with some price of memory. `scale`: of prices, for all memory of
  /// a device.
  std::optional<Found> find_by_prices(StrategyProblem& problem, const std::vector<Bytes>& limits, Seconds scale)
  {
    constexpr int most_searches = 16;
    constexpr double highest = 1e4;
    std::optional<Found> best;
    double too_low = 0;
    double enough = 0;  // 0: not known yet
    double price = 1;
    for (int i = 0; i < most_searches && price <= highest; ++i) {
      problem.memory_prices.clear();
      for (const Bytes limit : limits) problem.memory_prices.push_back(price * scale.value / limit.value);
      auto found = find(problem);
      found->is_exact = false;
      const auto& needed = found->cost.memory;
      if (std::equal(needed.begin(), needed.end(), limits.begin(), std::less_equal<>())) {
        enough = price;
        if (!best || found->cost.time < best->cost.time) best = std::move(found);
      } else {
        too_low = price;
      }
      price = enough == 0 ? 4 * price : (too_low + enough) / 2;
    }
    problem.memory_prices.clear();
    return best;
  }

  const OperatorGraph& graph_;
  const Workload& workload_;
  SpmdDevices devices_;
  const SpmdOptions& options_;
  std::optional<GroupRun> run_;
  std::vector<std::uint64_t> microbatches_;
  SearchCounts counts_;
  std::uint64_t turns_ = 0;
};

/// Forms of a baseline: tensors of samples are slices of them, and experts with their slots may be divided.
class BaselineForms {
 public:
  BaselineForms(const OperatorGraph& graph, bool divides_experts)
      : graph_(graph), samples_(sample_dimensions(graph)), is_of_experts_(graph.tensors.size(), false)
  {
    for (std::size_t i = 0; i < graph.operators.size() && divides_experts; ++i) {
      if (is_of_experts(i)) is_of_experts_[graph.operators[i].outputs[0]] = true;
    }
  }

  /// Index of the signature of an operator with these forms.
  std::size_t option(std::size_t index, const StrategyNode& entry) const
  {
    const Operator& node = graph_.operators[index];
    const bool by_experts = !node.outputs.empty() && is_of_experts_[node.outputs[0]];
    for (std::size_t i = 0; i < entry.options.size(); ++i) {
      const Signature& signature = entry.options[i].signature;
      bool is_found = node.kind == OperatorKind::Output;
      if (by_experts) {
        is_found = signature.outputs[0] == gather(node.kind == OperatorKind::Parameter ? 0 : 1);
      } else if (node.inputs.empty()) {
        is_found = signature.outputs[0] == form_of(node.outputs[0]) || signature.outputs[0] == replicate;
      } else if (!is_found) {
        is_found = std::equal(node.inputs.begin(), node.inputs.end(), signature.inputs.begin(),
                              [&](std::size_t tensor, Form form) { return form == form_of(tensor); });
      }
      if (is_found) return i;
    }
    ensure(false, "an operator that samples cannot divide");
    return 0;
  }

  /// Whether a part begins with an operator: with a layer, with experts and after them.
  bool begins_part(std::size_t index) const
  {
    const Operator& node = graph_.operators[index];
    if (index == 0 || node.layer != graph_.operators[index - 1].layer) return true;
    const auto reads = [&](OperatorKind kind, bool by_experts) {
      return std::any_of(node.inputs.begin(), node.inputs.end(), [&](std::size_t tensor) {
        return graph_.operators[graph_.tensors[tensor].producer].kind == kind && is_of_experts_[tensor] == by_experts;
      });
    };
    if (node.kind == OperatorKind::Combine) return reads(OperatorKind::Expert, true);
    return node.kind == OperatorKind::Expert && is_of_experts_[node.outputs[0]] && reads(OperatorKind::Dispatch, false);
  }

 private:
  Form form_of(std::size_t tensor) const { return samples_[tensor] ? gather(*samples_[tensor]) : full; }

  /// Whether an operator computes with experts, or is their matrix.
  bool is_of_experts(std::size_t index) const
  {
    const Operator& node = graph_.operators[index];
    if (node.kind == OperatorKind::Expert) return true;
    if (node.kind == OperatorKind::Parameter) {
      return std::any_of(graph_.operators.begin() + static_cast<std::ptrdiff_t>(index), graph_.operators.end(),
                         [&](const Operator& reader) {
                           return reader.kind == OperatorKind::Expert && reader.inputs[0] == node.outputs[0];
                         });
    }
    return node.kind == OperatorKind::Relu && is_of_experts_[node.inputs[0]];
  }

  const OperatorGraph& graph_;
  std::vector<std::optional<std::uint8_t>> samples_;
  std::vector<bool> is_of_experts_;  // by tensor
};

}  // namespace

std::optional<SpmdPlan> find_spmd_plan(const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                                       const Replicas& replicas, const SpmdOptions& options,
                                       const std::optional<GroupRun>& run)
{
  return PlanSearch(graph, workload, devices_of(cluster, replicas, workload, options), options, run).run();
}

std::optional<SpmdPlan> find_spmd_plan(const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                                       const std::vector<std::size_t>& devices, const SpmdOptions& options)
{
  return find_spmd_plan(graph, workload, cluster, Replicas{devices}, options);
}

SpmdPlan baseline_plan(Baseline baseline, const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                       const std::vector<std::size_t>& devices, const SpmdOptions& options)
{
  const PlanSearch search(graph, workload, devices_of(cluster, Replicas{devices}, workload, options), options);
  Candidate candidate =
      search.begin(baseline == Baseline::DpCp ? shares_by_speed(search.devices()) : even_shares(search.devices()), 1);
  const BaselineForms forms(graph, baseline == Baseline::ExpertParallel);
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    if (forms.begins_part(i)) candidate.stages.push_back({i, i, {}, {}});
    candidate.stages.back().last = i;
    candidate.stages.back().options.push_back(forms.option(i, candidate.problem.nodes[i]));
  }
  add_reforms(candidate.problem, candidate.stages);
  candidate.cost = cost_of(candidate.problem, CostFormula::Duplex, candidate.stages);
  return plan_of(candidate);
}

}  // namespace isobar::allocators::spmd
