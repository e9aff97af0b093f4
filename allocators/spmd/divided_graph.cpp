#include "allocators/spmd/divided_graph.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::allocators::spmd {

namespace {

/// The form of a tensor where it goes from group to group: slices of the samples.
constexpr Form crossing_form = gather(0);

double parameters_of(const OperatorGraph& graph, const Operator& node)
{
  return elements_of(graph.tensors[node.outputs[0]]);
}

}  // namespace

std::vector<double> even_shares(const SpmdDevices& devices)
{
  return std::vector<double>(devices.count(), 1 / static_cast<double>(devices.count()));
}

std::vector<double> shares_by_speed(const SpmdDevices& devices)
{
  FlopsPerSecond all;
  for (const auto& rates : devices.rates) all += rates.flops;
  std::vector<double> shares;
  for (const auto& rates : devices.rates) shares.push_back(rates.flops / all);
  return shares;
}

std::vector<std::size_t> crossing_tensors(const OperatorGraph& graph, std::size_t cut)
{
  std::vector<std::size_t> crossing;
  for (std::size_t i = cut; i < graph.operators.size(); ++i) {
    for (const std::size_t tensor : graph.operators[i].inputs) {
      const std::size_t producer = graph.tensors[tensor].producer;
      if (producer < cut && !is_source(graph.operators[producer].kind)) crossing.push_back(tensor);
    }
  }
  std::sort(crossing.begin(), crossing.end());
  crossing.erase(std::unique(crossing.begin(), crossing.end()), crossing.end());
  return crossing;
}

DividedGraph::DividedGraph(const OperatorGraph& graph, Rules rules, const Workload& workload,
                           const SpmdDevices& devices, std::vector<double> shares, std::uint64_t microbatches,
                           const std::optional<GroupRun>& run)
    : graph_(over_part_of_samples(graph, microbatches)),
      rules_(rules),
      workload_(&workload),
      devices_(&devices),
      microbatches_(microbatches),
      run_(run.value_or(GroupRun{0, graph.operators.size(), 1, microbatches})),
      arriving_(crossing_tensors(graph, run_.begin)),
      pieces_(graph_, std::move(shares)),
      keepers_(graph.tensors.size(), 0)
{
  ensure(arriving_.size() <= 1, "a group of a pipeline to which several tensors come");
  list_operators();
  const auto is_alike = [&](std::size_t a, std::size_t b) {
    return devices.rates[a] == devices.rates[b] && devices.memory[a] == devices.memory[b] &&
           this->shares()[a] == this->shares()[b];
  };
  for (std::size_t i = 0; i < devices.count(); ++i) {
    const auto kind =
        std::find_if(kinds_.begin(), kinds_.end(), [&](const Kind& other) { return is_alike(other.first, i); });
    kind_of_.push_back(static_cast<std::size_t>(kind - kinds_.begin()));
    if (kind == kinds_.end()) kinds_.push_back({i, 0});
    ++kinds_[kind_of_.back()].count;
  }
  kept_first_.resize(graph_.operators.size());
  for (const auto index : operators_) {
    if (!index) continue;
    for (const auto tensor : graph_.operators[*index].keeps) {
      if (keepers_[tensor]++ == 0) kept_first_[*index].push_back(tensor);
    }
  }
}

void DividedGraph::list_operators()
{
  std::vector<bool> is_read(graph_.tensors.size(), false);
  for (std::size_t i = run_.begin; i < run_.end; ++i) {
    for (const auto tensor : graph_.operators[i].inputs) is_read[tensor] = true;
  }
  if (!arriving_.empty()) operators_.emplace_back();
  for (std::size_t i = 0; i < run_.end; ++i) {
    const Operator& node = graph_.operators[i];
    const bool is_shared = is_source(node.kind) && node.kind != OperatorKind::Parameter;
    if (is_shared ? is_read[node.outputs[0]] : i >= run_.begin) operators_.emplace_back(i);
  }
}

template <typename PartOf>
Bytes DividedGraph::kept(std::size_t index, const Signature& signature, PartOf part_of) const
{
  const Operator& its = graph_.operators[index];
  const auto form_of_tensor = [&](std::size_t tensor) {
    const auto input = std::find(its.inputs.begin(), its.inputs.end(), tensor);
    if (input != its.inputs.end()) return signature.inputs[static_cast<std::size_t>(input - its.inputs.begin())];
    const auto output = std::find(its.outputs.begin(), its.outputs.end(), tensor);
    return signature.outputs[static_cast<std::size_t>(output - its.outputs.begin())];
  };
  Bytes kept;
  for (const auto tensor : kept_first_[index]) kept += part_of(tensor, form_of_tensor(tensor));
  if (its.kind == OperatorKind::Dropout) {  // the mask
    const Bytes whole = graph_.tensors[its.outputs[0]].size;
    kept += part_of(its.outputs[0], signature.outputs[0]) / whole * its.kept;
  }
  return kept;
}

Load DividedGraph::load(std::size_t index, const Signature& signature, std::size_t device) const
{
  const Operator& its = graph_.operators[index];
  const DeviceRates& rates = devices_->rates[device];
  if (its.kind == OperatorKind::Parameter) {
    const std::size_t tensor = its.outputs[0];
    const Bytes element = graph_.tensors[tensor].size / parameters_of(graph_, its);
    const double parameters = pieces_.size(tensor, signature.outputs[0], device) / element;
    const Flops update(parameters * update_flops_per_parameter(workload_->optimizer));
    const Bytes memory(parameters * bytes_per_parameter(*workload_));
    const Seconds time = update_time(update, Bytes(parameters * bytes_of_update(*workload_)), rates);
    const Seconds across = devices_->across ? parameters * element / devices_->across->bandwidth : Seconds();
    return {{}, {}, time / static_cast<double>(run_.waves), memory, across};
  }
  const OperatorTimes times = operator_times(its, piece_of(its, signature, pieces_, device), rates);
  const Bytes kept_bytes =
      kept(index, signature, [&](std::size_t tensor, Form form) { return pieces_.size(tensor, form, device); });
  return {times.forward, times.backward, {}, static_cast<double>(run_.held) * kept_bytes};
}

DividedGraph::LinearLoad DividedGraph::linear_load(std::size_t node, const Signature& signature, std::size_t kind) const
{
  const auto index = operators_[node];
  if (!index) return {};
  const Operator& its = graph_.operators[*index];
  const std::size_t device = kinds_[kind].first;
  const auto is_slice = [](Form form) { return form.kind == Form::Kind::Gather; };
  const bool is_divided = std::any_of(signature.inputs.begin(), signature.inputs.end(), is_slice) ||
                          std::any_of(signature.outputs.begin(), signature.outputs.end(), is_slice);
  LinearLoad linear;
  const DeviceRates& rates = devices_->rates[device];
  if (its.kind == OperatorKind::Parameter) {
    const double parameters = parameters_of(graph_, its);
    Load& load = is_divided ? linear.per_share : linear.fixed;
    load.update = update_time(Flops(parameters * update_flops_per_parameter(workload_->optimizer)),
                              Bytes(parameters * bytes_of_update(*workload_)), rates) /
                  static_cast<double>(run_.waves);
    load.memory = Bytes(parameters * bytes_per_parameter(*workload_));
    return linear;
  }
  const double even = 1 / static_cast<double>(devices_->count());
  const auto part_of = [&](Form form) { return is_slice(form) ? even : 1; };
  OperatorPiece piece{is_divided ? even : 1, {}};
  for (std::size_t i = 0; i < its.inputs.size(); ++i) {
    piece.touched += part_of(signature.inputs[i]) * graph_.tensors[its.inputs[i]].size;
  }
  for (std::size_t i = 0; i < its.outputs.size(); ++i) {
    piece.touched += part_of(signature.outputs[i]) * graph_.tensors[its.outputs[i]].size;
  }
  const OperatorTimes times = operator_times(its, piece, rates);
  linear.fixed.forward = times.launch_forward;
  linear.fixed.backward = times.launch_backward;
  Load& rest = is_divided ? linear.per_share : linear.fixed;
  rest.forward += (times.forward - times.launch_forward) / piece.part;
  rest.backward += (times.backward - times.launch_backward) / piece.part;
  const auto held = static_cast<double>(run_.held);
  const auto kept_of = [&](bool slices) {
    return held * kept(*index, signature, [&](std::size_t tensor, Form form) {
             return is_slice(form) == slices ? graph_.tensors[tensor].size : Bytes();
           });
  };
  linear.fixed.memory = kept_of(false);
  linear.per_share.memory = kept_of(true);
  return linear;
}

Seconds DividedGraph::time_of(ReformKind kind, std::size_t tensor, Form from, Form to) const
{
  const auto opcode = opcode_of(kind);
  if (!opcode) return {};
  const auto sizes = sizes_of_ends(*opcode, pieces_, tensor, from);
  const auto results = results_of_ends(*opcode, pieces_, tensor, from, to);
  const auto [place, is_new] = times_.try_emplace({*opcode, sizes, results});
  if (is_new) place->second = collective_time(*opcode, sizes, devices_->group, results);
  return place->second;
}

ReformCost DividedGraph::reform_cost(std::size_t tensor, Form from, Form to) const
{
  const Reform* reform = reform_between(from, to, rules_);
  ReformCost cost{time_of(reform->forward, tensor, from, to), {}};
  if (graph_.has_gradient(tensor)) {
    cost.backward = time_of(reform->backward, tensor, gradient_form(to), gradient_form(from));
  }
  const bool is_parameter = graph_.is_parameter(tensor);
  if (is_parameter) {
    cost.forward = cost.forward / static_cast<double>(run_.waves);
    cost.backward = cost.backward / static_cast<double>(run_.waves);
  }
  // Of a parameter, the joined slices and their gradient; of activations, what is kept in a second form.
  const double copies = is_parameter ? 2 : keepers_[tensor] > 1 ? static_cast<double>(run_.held) : 0;
  if (copies == 0 || !opcode_of(reform->forward)) return cost;
  for (const auto& kind : kinds_) cost.memory.push_back(copies * pieces_.size(tensor, to, kind.first));
  return cost;
}

StrategyProblem DividedGraph::problem() const
{
  StrategyProblem problem;
  problem.rules = rules_;
  problem.devices = devices_->count();
  problem.microbatches = microbatches_;
  problem.interference = devices_->interference;
  problem.reform_cost = [this](std::size_t tensor, Form from, Form to) { return reform_cost(tensor, from, to); };
  problem.has_replicas = devices_->across.has_value();
  if (devices_->across) problem.across_latency = devices_->across->latency;
  for (const auto& kind : kinds_) problem.memory.push_back(devices_->memory[kind.first]);
  for (std::size_t i = 0; i < graph_.tensors.size(); ++i) problem.is_parameter.push_back(graph_.is_parameter(i));
  const auto leaving = crossing_tensors(graph_, run_.end);
  for (const auto index : operators_) {
    StrategyNode& entry = problem.nodes.emplace_back();
    if (!index) {
      entry.outputs = arriving_;
      entry.options.push_back({{{}, {crossing_form}}, std::vector<Load>(kinds_.size())});
      continue;
    }
    const Operator& node = graph_.operators[*index];
    entry.inputs = node.inputs;
    entry.outputs = node.outputs;
    for (auto& signature : signatures_of(graph_, node, rules_)) {
      const bool leaves = std::any_of(leaving.begin(), leaving.end(), [&](std::size_t tensor) {
        return graph_.tensors[tensor].producer == *index && signature.outputs.front() != crossing_form;
      });
      if (leaves) continue;
      std::vector<Load> loads;
      for (const auto& kind : kinds_) loads.push_back(load(*index, signature, kind.first));
      entry.options.push_back({std::move(signature), std::move(loads)});
    }
  }
  return problem;
}

}  // namespace isobar::allocators::spmd
