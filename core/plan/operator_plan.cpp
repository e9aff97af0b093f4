#include "core/plan/operator_plan.hpp"

#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"
#include "core/spmd/operator_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace isobar {

namespace {

/// Reads the division of a plan. Faults are lines without a place.
class DivisionReader {
 public:
  DivisionReader(const Plan& plan, const spmd::OperatorGraph& graph) : plan_(plan), graph_(graph) {}

  spmd::Division read()
  {
    spmd::Division division;
    for (const auto& stage : plan_.stages) {
      division.parts.push_back(stage.first_layer);
      for (const auto& split : stage.splits) read(split, division);
    }
    if (faults_.empty() && division.signatures.size() != graph_.operators.size()) {
      faults_.push_back(fmt::format("splits: {}; the workload has {} operators", division.signatures.size(),
                                    graph_.operators.size()));
    }
    return division;
  }

  const std::vector<std::string>& faults() const { return faults_; }

 private:
  void read(const NamedSplit& split, spmd::Division& division)
  {
    const std::size_t index = division.signatures.size();
    auto signature = spmd::signature_from_text(split.split);
    if (!signature) {
      faults_.push_back(fmt::format("splits: {} of {}; write forms such as \"gather0 full -> gather0\"",
                                    in_quotes(split.split), shown(split.layers)));
    } else if (index < graph_.operators.size() && split.layers != graph_.operators[index].name) {
      if (faults_.empty()) {
        faults_.push_back(fmt::format("splits: {} in the place of {}; list all operators in their order",
                                      shown(split.layers), shown(graph_.operators[index].name)));
      }
    }
    division.signatures.push_back(std::move(signature).value_or(spmd::Signature{}));
  }

  const Plan& plan_;
  const spmd::OperatorGraph& graph_;
  std::vector<std::string> faults_;
};

const Replica& replica_of(const Plan& plan)
{
  return plan.stages.front().replicas.front();
}

bool has_same_shards(const Replica& a, const Replica& b)
{
  return std::equal(
      a.shards.begin(), a.shards.end(), b.shards.begin(), b.shards.end(),
      [](const Shard& one, const Shard& other) { return one.device == other.device && one.share == other.share; });
}

std::vector<double> shares_of(const Plan& plan)
{
  std::vector<double> shares;
  for (const auto& shard : replica_of(plan).shards) shares.push_back(shard.share);
  return shares;
}

/// What is wrong with the ends of buckets, without a place.
std::optional<std::string> fault_of_buckets(const Sync& sync, const spmd::OperatorGraph& graph,
                                            const std::vector<spmd::PlacedReform>& reforms)
{
  if (sync.bucket_ends.empty()) return std::nullopt;
  const auto name_of = [&](std::size_t node) { return shown(graph.operators[node].name); };
  const auto order = replicas_in_backward(graph, reforms);
  auto next = order.begin();
  for (const std::size_t end : sync.bucket_ends) {
    const auto is_end = [&](std::size_t reform) { return graph.tensors[reforms[reform].tensor].producer == end; };
    const auto found = std::find_if(order.begin(), order.end(), is_end);
    if (found == order.end()) {
      return fmt::format("{} is not a parameter that each device has; write one whose gradient is added up",
                         name_of(end));
    }
    if (found < next) {
      return fmt::format("{} comes too late; list the ends in the order in which backward makes gradients",
                         name_of(end));
    }
    next = found + 1;
  }
  if (next == order.end()) return std::nullopt;
  return fmt::format("no bucket has {}; end the last one with {}",
                     name_of(graph.tensors[reforms[*next].tensor].producer),
                     name_of(graph.tensors[reforms[order.back()].tensor].producer));
}

std::vector<std::vector<std::size_t>> buckets_of(const Sync& sync, const spmd::OperatorGraph& graph,
                                                 const std::vector<spmd::PlacedReform>& reforms)
{
  std::vector<std::vector<std::size_t>> buckets;
  bool is_open = false;
  auto end = sync.bucket_ends.begin();
  for (const std::size_t reform : replicas_in_backward(graph, reforms)) {
    if (!is_open) buckets.emplace_back();
    buckets.back().push_back(reform);
    is_open = end != sync.bucket_ends.end() && graph.tensors[reforms[reform].tensor].producer != *end;
    if (!is_open && end != sync.bucket_ends.end()) ++end;
  }
  return buckets;
}

}  // namespace

std::vector<std::size_t> replicas_in_backward(const spmd::OperatorGraph& graph,
                                              const std::vector<spmd::PlacedReform>& reforms)
{
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < reforms.size(); ++i) {
    if (reforms[i].from == spmd::replicate && graph.has_gradient(reforms[i].tensor)) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (reforms[a].part != reforms[b].part) return reforms[a].part > reforms[b].part;
    return reforms[a].tensor > reforms[b].tensor;
  });
  return order;
}

std::optional<spmd::OperatorGraph> operator_graph_of(const Workload& workload)
{
  const auto* sizes = std::get_if<spmd::MoeSizes>(&workload.model);
  if (sizes == nullptr || !sizes->by_operator) return std::nullopt;
  return operator_graph_of(workload, workload.micro_batch);
}

spmd::OperatorGraph operator_graph_of(const Workload& workload, std::uint64_t samples)
{
  const auto& sizes = std::get<spmd::MoeSizes>(workload.model);
  const double element_bytes = size_of(workload.dtype);
  auto graph = spmd::make_operator_graph(sizes, samples, element_bytes);
  const auto micro_batch = spmd::make_operator_graph(sizes, workload.micro_batch, element_bytes);
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const Flops nominal = micro_batch.operators[i].forward;
    if (nominal <= Flops(0)) continue;
    const double factor = workload.layers[i].forward / nominal;
    graph.operators[i].forward = graph.operators[i].forward * factor;
    graph.operators[i].backward = graph.operators[i].backward * factor;
  }
  return graph;
}

const spmd::DeviceRates* operator_rates_of(const Workload& workload, const std::string& type)
{
  const auto found = workload.operator_rates.find(type);
  return found == workload.operator_rates.end() ? nullptr : &found->second;
}

spmd::DeviceRates operator_rates_of(const Workload& workload, const Device& device)
{
  const FlopsPerSecond speed = device.speed_at(workload.dtype);
  const auto* rates = operator_rates_of(workload, device.type);
  return rates == nullptr ? spmd::DeviceRates{speed} : spmd::at_speed(*rates, speed);
}

double bytes_of_update(const Workload& workload)
{
  const ParameterBytes bytes = parameter_bytes(workload.dtype, workload.optimizer);
  return 2 * bytes.parameter + bytes.gradient + 2 * bytes.optimizer;
}

bool divides_operators(const Stage& stage)
{
  return !stage.splits.empty() && spmd::is_signature_text(stage.splits.front().split);
}

bool divides_operators(const Plan& plan)
{
  return !plan.stages.empty() && divides_operators(plan.stages.front());
}

std::vector<std::string> faults_of_operators(const Plan& plan, const Workload& workload)
{
  std::vector<std::string> faults;
  const auto add = [&](const std::string& fault) { faults.push_back("stages[0]." + fault); };
  const auto graph = operator_graph_of(workload);
  if (!graph) {
    add("splits: divides operators, and the workload has no layer for each; write unit: operator of a moe");
    return faults;
  }
  if (!workload.recompute.empty()) add("splits: divides operators, which keep their activations; leave recompute out");
  if (plan.data_server) add("splits: divides operators on devices that have their data; leave data_server out");
  for (const auto& stage : plan.stages) {
    const bool is_alike = divides_operators(stage) && stage.replicas.size() == 1 &&
                          has_same_shards(stage.replicas.front(), replica_of(plan));
    if (is_alike && stage.splits.size() == stage.last_layer - stage.first_layer + 1) continue;
    add("splits: every operator of the plan has a signature, on the same devices");
    return faults;
  }
  DivisionReader reader(plan, *graph);
  const spmd::Division division = reader.read();
  for (const auto& fault : reader.faults()) add(fault);
  if (!faults.empty()) return faults;
  const spmd::Rules rules = spmd::rules_of(std::get<spmd::MoeSizes>(workload.model));
  for (const auto& fault : spmd::faults_of(*graph, division, rules)) add("splits: " + fault);
  if (!faults.empty()) return faults;
  if (const auto fault = fault_of_buckets(plan.sync, *graph, spmd::reforms_of(*graph, division, rules))) {
    faults.push_back("sync.bucket_ends: " + *fault);
  }
  return faults;
}

OperatorPlan operator_plan_of(const Plan& plan, const Workload& workload)
{
  OperatorPlan read;
  auto graph = operator_graph_of(workload);
  ensure(graph.has_value(), "a plan that divides operators has a workload of operators");
  read.graph = std::move(*graph);
  read.rules = spmd::rules_of(std::get<spmd::MoeSizes>(workload.model));
  read.division = DivisionReader(plan, read.graph).read();
  read.reforms = spmd::reforms_of(read.graph, read.division, read.rules);
  read.shares = shares_of(plan);
  if (plan.sync.adds_replicas) read.buckets = buckets_of(plan.sync, read.graph, read.reforms);
  return read;
}

std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<Shard>& shards)
{
  std::vector<Stage> stages;
  for (std::size_t part = 0; part < division.parts.size(); ++part) {
    Stage& stage = stages.emplace_back();
    stage.first_layer = division.parts[part];
    stage.last_layer = division.end_of(part) - 1;
    stage.replicas = {{0, shards}};
    for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) {
      stage.splits.push_back({graph.operators[i].name, spmd::text_of(division.signatures[i])});
    }
  }
  return stages;
}

}  // namespace isobar
