#include "core/plan/operator_plan.hpp"

#include "core/cluster/device_types.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/spmd/operator_time.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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
    const auto groups = pipeline_stages(plan_);
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      if (i > 0 && groups[i] != groups[i - 1]) division.groups.push_back(i);
      division.parts.push_back(plan_.stages[i].first_layer);
      for (const auto& split : plan_.stages[i].splits) read(split, division);
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

std::vector<double> shares_of(const Replica& replica)
{
  std::vector<double> shares;
  for (const auto& shard : replica.shards) shares.push_back(shard.share);
  return shares;
}

/// What is wrong with the samples that the replicas of a plan take, without a place.
std::optional<std::string> fault_of_samples(const Plan& plan, const Workload& workload)
{
  const std::uint64_t replicas = plan.stages.front().replicas.size();
  const std::uint64_t samples = workload.micro_batch;
  if (samples % replicas != 0) {
    return fmt::format("{}, which cannot have as many of the {} of a micro-batch; their number divides it",
                       counted(replicas, "replica"), counted(samples, "sample"));
  }
  const std::uint64_t group = std::get<spmd::MoeSizes>(workload.model).routing.capacity_samples;
  if (samples / replicas % group == 0) return std::nullopt;
  return fmt::format("{} with {} of a micro-batch each; the slots of experts are for {} (capacity_samples)",
                     counted(replicas, "replica"), counted(samples / replicas, "sample"), group);
}

/// What is wrong with the ends of buckets, without a place.
std::optional<std::string> fault_of_buckets(const Sync& sync, const spmd::OperatorGraph& graph,
                                            const spmd::Division& division,
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
  for (std::size_t i = 0; i + 1 < order.size(); ++i) {
    const std::size_t parameter = graph.tensors[reforms[order[i]].tensor].producer;
    if (division.group_of(reforms[order[i]].part) == division.group_of(reforms[order[i + 1]].part)) continue;
    if (std::find(sync.bucket_ends.begin(), sync.bucket_ends.end(), parameter) != sync.bucket_ends.end()) continue;
    return fmt::format("{} is in a bucket with a parameter of another stage; end one with it", name_of(parameter));
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
  const auto found = std::ranges::find_if(workload.operator_rates,
                                          [&](const auto& rates) { return is_same_device_type(rates.first, type); });
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
  const ParameterBytes bytes = parameter_bytes(workload);
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

std::optional<StageFault> fault_of_dividing_devices(const std::vector<Stage>& stages)
{
  std::map<std::string, std::size_t> stage_of;  // of a device: the first that it is in
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& replicas = stages[i].replicas;
    if (replicas.size() != stages[0].replicas.size()) {
      return StageFault{i, "replicas",
                        fmt::format("{}, and stages[0] has {}; each takes its samples through all stages",
                                    replicas.size(), stages[0].replicas.size())};
    }
    const bool is_part = i > 0 && has_same_devices(stages[i - 1], stages[i]);
    for (std::size_t k = 0; k < replicas.size(); ++k) {
      const auto fault = [&](const std::string& key, const std::string& text) {
        return StageFault{i, fmt::format("replicas[{}].{}", k, key), text};
      };
      if (replicas.size() > 1 && replicas[k].microbatches > 0) {
        return fault("microbatches", "each replica takes samples of every micro-batch; leave it out");
      }
      const auto& shards = replicas[k].shards;
      // Parts are on their devices as the one before.
      const auto& alike = is_part ? stages[i - 1].replicas[k].shards : replicas.front().shards;
      if (shards.size() != alike.size()) {
        return fault("shards", fmt::format("{}, and replicas[0] has {}; all divide operators alike", shards.size(),
                                           alike.size()));
      }
      for (std::size_t q = 0; q < shards.size(); ++q) {
        const std::string shard = fmt::format("shards[{}]", q);
        if (shards[q].share != alike[q].share) {
          return fault(shard + ".share", fmt::format("{}, and replicas[0] has {}; all divide operators alike",
                                                     shards[q].share, alike[q].share));
        }
        const bool is_new = is_part || stage_of.emplace(shards[q].device, i).second;
        if (is_new) continue;
        return fault(shard + ".device",
                     fmt::format("{} a second time; each shard has a device of its own", shown(shards[q].device)));
      }
    }
  }
  return std::nullopt;
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
    if (divides_operators(stage) && stage.splits.size() == stage.last_layer - stage.first_layer + 1) continue;
    add("splits: every operator of the plan has a signature");
    return faults;
  }
  if (const auto fault = fault_of_dividing_devices(plan.stages)) {
    faults.push_back(fmt::format("stages[{}].{}: {}", pipeline_stages(plan)[fault->stage], fault->key, fault->text));
    return faults;
  }
  if (plan.sync.sharded != Sharding::None || plan.sync.bucket > Bytes(0)) {
    faults.push_back("sync: sharded and bucket_bytes are for stages of whole layers; leave them out");
  }
  if (const auto fault = fault_of_samples(plan, workload)) add("replicas: " + *fault);
  DivisionReader reader(plan, *graph);
  const spmd::Division division = reader.read();
  for (const auto& fault : reader.faults()) add(fault);
  if (!faults.empty()) return faults;
  const spmd::Rules rules = spmd::rules_of(std::get<spmd::MoeSizes>(workload.model));
  for (const auto& fault : spmd::faults_of(*graph, division, rules)) add("splits: " + fault);
  if (!faults.empty()) return faults;
  if (const auto fault = fault_of_buckets(plan.sync, *graph, division, spmd::reforms_of(*graph, division, rules))) {
    faults.push_back("sync.bucket_ends: " + *fault);
  }
  return faults;
}

OperatorPlan operator_plan_of(const Plan& plan, const Workload& workload)
{
  OperatorPlan read;
  ensure(operator_graph_of(workload).has_value(), "a plan that divides operators has a workload of operators");
  read.graph = operator_graph_of(workload, workload.micro_batch / plan.stages.front().replicas.size());
  read.rules = spmd::rules_of(std::get<spmd::MoeSizes>(workload.model));
  read.division = DivisionReader(plan, read.graph).read();
  read.reforms = spmd::reforms_of(read.graph, read.division, read.rules);
  read.replicas = plan.stages.front().replicas.size();
  std::size_t ranks = 0;
  for (std::size_t i = 0; i < read.division.groups.size(); ++i) {
    const std::size_t first = read.division.groups[i];
    read.groups.push_back(
        {first, read.division.end_of_group(i), ranks, shares_of(plan.stages[first].replicas.front())});
    ranks += read.replicas * read.groups.back().shares.size();
  }
  const auto readers = read.graph.readers();
  for (std::size_t tensor = 0; tensor < read.graph.tensors.size(); ++tensor) {
    const std::size_t maker = read.graph.tensors[tensor].producer;
    if (spmd::is_source(read.graph.operators[maker].kind) || readers[tensor].empty()) continue;
    const auto group_of = [&](std::size_t node) { return read.division.group_of(read.division.part_of(node)); };
    if (group_of(readers[tensor].back()) > group_of(maker)) read.groups[group_of(maker)].passes.push_back(tensor);
  }
  if (plan.sync.adds_replicas) read.buckets = buckets_of(plan.sync, read.graph, read.reforms);
  return read;
}

std::size_t OperatorPlan::group_of(std::size_t part) const
{
  return division.group_of(part);
}

spmd::Form OperatorPlan::form_of(std::size_t tensor) const
{
  const std::size_t maker = graph.tensors[tensor].producer;
  const auto& outputs = graph.operators[maker].outputs;
  const auto output = std::find(outputs.begin(), outputs.end(), tensor) - outputs.begin();
  return division.signatures[maker].outputs.at(static_cast<std::size_t>(output));
}

OperatorPlace OperatorPlan::place_of(std::size_t rank) const
{
  std::size_t group = groups.size();
  while (groups[--group].first_rank > rank) continue;
  const std::size_t devices = groups[group].shares.size();
  const std::size_t number = rank - groups[group].first_rank;
  return {group, number / devices, number % devices};
}

std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<GroupDevices>& groups)
{
  std::vector<Stage> stages;
  auto group = groups.begin();
  for (std::size_t part = 0; part < division.parts.size(); ++part) {
    if (part == group->end_part) ++group;
    Stage& stage = stages.emplace_back();
    stage.first_layer = division.parts[part];
    stage.last_layer = division.end_of(part) - 1;
    for (const auto& shards : group->replicas) stage.replicas.push_back({0, shards});
    for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) {
      stage.splits.push_back({graph.operators[i].name, spmd::text_of(division.signatures[i])});
    }
  }
  return stages;
}

std::vector<Stage> stages_of(const spmd::OperatorGraph& graph, const spmd::Division& division,
                             const std::vector<Shard>& shards)
{
  return stages_of(graph, division, std::vector<GroupDevices>{{division.parts.size(), {shards}}});
}

}  // namespace isobar
