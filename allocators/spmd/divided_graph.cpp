#include "allocators/spmd/divided_graph.hpp"

#include "core/plan/operator_plan.hpp"

#include <algorithm>
#include <numeric>

namespace isobar::allocators::spmd {

namespace {

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

DividedGraph::DividedGraph(const OperatorGraph& graph, Rules rules, const Workload& workload,
                           const SpmdDevices& devices, std::vector<double> shares, std::uint64_t microbatches)
    : graph_(over_part_of_samples(graph, microbatches)),
      rules_(rules),
      workload_(&workload),
      devices_(&devices),
      microbatches_(microbatches),
      pieces_(graph_, std::move(shares)),
      keepers_(graph.tensors.size(), 0)
{
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
  for (const auto& node : graph_.operators) {
    auto& kept = kept_first_.emplace_back();
    for (const auto tensor : node.keeps) {
      if (keepers_[tensor]++ == 0) kept.push_back(tensor);
    }
  }
}

template <typename PartOf>
Bytes DividedGraph::kept(std::size_t node, const Signature& signature, PartOf part_of) const
{
  const Operator& its = graph_.operators[node];
  const auto form_of_tensor = [&](std::size_t tensor) {
    const auto input = std::find(its.inputs.begin(), its.inputs.end(), tensor);
    if (input != its.inputs.end()) return signature.inputs[static_cast<std::size_t>(input - its.inputs.begin())];
    const auto output = std::find(its.outputs.begin(), its.outputs.end(), tensor);
    return signature.outputs[static_cast<std::size_t>(output - its.outputs.begin())];
  };
  Bytes kept;
  for (const auto tensor : kept_first_[node]) kept += part_of(tensor, form_of_tensor(tensor));
  if (its.kind == OperatorKind::Dropout) {  // the mask
    const Bytes whole = graph_.tensors[its.outputs[0]].size;
    kept += part_of(its.outputs[0], signature.outputs[0]) / whole * its.kept;
  }
  return kept;
}

Load DividedGraph::load(std::size_t node, const Signature& signature, std::size_t device) const
{
  const Operator& its = graph_.operators[node];
  const DeviceRates& rates = devices_->rates[device];
  if (its.kind == OperatorKind::Parameter) {
    const std::size_t tensor = its.outputs[0];
    const Bytes element = graph_.tensors[tensor].size / parameters_of(graph_, its);
    const double parameters = pieces_.size(tensor, signature.outputs[0], device) / element;
    const Flops update(parameters * update_flops_per_parameter(workload_->optimizer));
    const Bytes memory(parameters * bytes_per_parameter(workload_->dtype, workload_->optimizer));
    return {{}, {}, update_time(update, Bytes(parameters * bytes_of_update(*workload_)), rates), memory};
  }
  const OperatorTimes times = operator_times(its, piece_of(its, signature, pieces_, device), rates);
  const Bytes kept_bytes =
      kept(node, signature, [&](std::size_t tensor, Form form) { return pieces_.size(tensor, form, device); });
  return {times.forward, times.backward, {}, static_cast<double>(microbatches_) * kept_bytes};
}

DividedGraph::LinearLoad DividedGraph::linear_load(std::size_t node, const Signature& signature, std::size_t kind) const
{
  const Operator& its = graph_.operators[node];
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
                              Bytes(parameters * bytes_of_update(*workload_)), rates);
    load.memory = Bytes(parameters * bytes_per_parameter(workload_->dtype, workload_->optimizer));
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
  const auto all = static_cast<double>(microbatches_);
  const auto kept_of = [&](bool slices) {
    return all * kept(node, signature, [&](std::size_t tensor, Form form) {
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
  // Of a parameter, the joined slices and their gradient; of activations, what is kept in a second form.
  const double copies = is_parameter ? 2 : keepers_[tensor] > 1 ? static_cast<double>(microbatches_) : 0;
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
  for (const auto& kind : kinds_) problem.memory.push_back(devices_->memory[kind.first]);
  for (std::size_t i = 0; i < graph_.tensors.size(); ++i) problem.is_parameter.push_back(graph_.is_parameter(i));
  for (std::size_t i = 0; i < graph_.operators.size(); ++i) {
    const Operator& node = graph_.operators[i];
    StrategyNode& entry = problem.nodes.emplace_back();
    entry.inputs = node.inputs;
    entry.outputs = node.outputs;
    for (auto& signature : signatures_of(graph_, node, rules_)) {
      std::vector<Load> loads;
      for (const auto& kind : kinds_) loads.push_back(load(i, signature, kind.first));
      entry.options.push_back({std::move(signature), std::move(loads)});
    }
  }
  return problem;
}

}  // namespace isobar::allocators::spmd
