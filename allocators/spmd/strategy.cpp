#include "allocators/spmd/strategy.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

constexpr NameTable<CostFormula, 4> formulas = {{{CostFormula::Paper, "paper"},
                                                 {CostFormula::Code, "code"},
                                                 {CostFormula::Symmetric, "symmetric"},
                                                 {CostFormula::None, "none"}}};

}  // namespace

Load& Load::operator+=(const Load& other)
{
  forward += other.forward;
  backward += other.backward;
  update += other.update;
  memory += other.memory;
  across += other.across;
  return *this;
}

Seconds StrategyNode::Option::update() const
{
  Seconds longest;
  for (const auto& load : loads) longest = std::max(longest, load.update);
  return longest;
}

Seconds StrategyNode::Option::across() const
{
  Seconds longest;
  for (const auto& load : loads) longest = std::max(longest, load.across);
  return longest;
}

StrategyProblem make_problem(const OperatorGraph& graph, Rules rules, const ParityProfile& profile)
{
  StrategyProblem problem;
  problem.rules = rules;
  problem.devices = profile.devices;
  problem.is_parameter.resize(graph.tensors.size(), false);
  std::vector<Bytes> sizes;
  for (const auto& tensor : graph.tensors) sizes.push_back(tensor.size);
  problem.reform_cost = [sizes = std::move(sizes), rules, profile](std::size_t tensor, Form from, Form to) {
    const Reform* reform = reform_between(from, to, rules);
    return ReformCost{profile.time_of(reform->forward, sizes[tensor]),
                      profile.time_of(reform->backward, sizes[tensor])};
  };
  const auto is_slice = [](Form form) { return form.kind == Form::Kind::Gather; };
  for (const auto& node : graph.operators) {
    StrategyNode& entry = problem.nodes.emplace_back();
    entry.inputs = node.inputs;
    entry.outputs = node.outputs;
    for (auto& signature : signatures_of(graph, node, rules)) {
      const bool is_divided = std::any_of(signature.inputs.begin(), signature.inputs.end(), is_slice) ||
                              std::any_of(signature.outputs.begin(), signature.outputs.end(), is_slice);
      const Seconds whole = node.forward / profile.device_flops;
      const Seconds forward = is_divided ? whole / static_cast<double>(profile.devices) : whole;
      entry.options.push_back({std::move(signature), {{forward, 2 * forward}}});
    }
  }
  return problem;
}

std::string_view name_of(CostFormula formula)
{
  return name_in(formulas, formula);
}

std::optional<CostFormula> cost_formula_from_name(std::string_view name)
{
  return value_in(formulas, name);
}

std::vector<std::string> cost_formula_names()
{
  return names_in(formulas);
}

void StageTimes::add_reform(const ReformCost& cost, bool of_parameter)
{
  (of_parameter ? parameter_forward : reform_forward) += cost.forward.value;
  (of_parameter ? parameter_backward : reform_backward) += cost.backward.value;
}

StageTimes& StageTimes::operator+=(const StageTimes& other)
{
  forward += other.forward;
  backward += other.backward;
  update += other.update;
  reform_forward += other.reform_forward;
  reform_backward += other.reform_backward;
  parameter_forward += other.parameter_forward;
  parameter_backward += other.parameter_backward;
  across += other.across;
  return *this;
}

double accumulated(CostFormula formula, std::uint64_t microbatches, double before, const Debts& debts,
                   const StageTimes& stage, double interference)
{
  const double forward = stage.forward;
  const double backward = stage.backward;
  const double reforms = stage.parameter_forward + stage.reform_forward;
  const double conjugates = stage.parameter_backward + stage.reform_backward;
  const double all = static_cast<double>(microbatches);
  const auto beside = [&](double compute, double collective) { return overlapped(compute, collective, interference); };
  const double slowed = (1 - 1 / interference) * stage.across;
  switch (formula) {
    case CostFormula::Paper:
      return before + std::max(debts.forward, reforms) + std::max(forward, reforms);
    case CostFormula::Code:
      return before + std::max(debts.forward, reforms) + std::max(forward, reforms) + debts.backward + conjugates +
             backward + conjugates;
    case CostFormula::Symmetric:
      return before + std::max(debts.forward, reforms) + std::max(forward, reforms) +
             std::max(debts.backward, conjugates) + std::max(backward, conjugates);
    case CostFormula::None:
      return before + debts.forward + reforms + forward + reforms + debts.backward + conjugates + backward + conjugates;
    case CostFormula::Duplex:
      if (microbatches == 1) {
        return before + stage.update + beside(debts.forward, stage.parameter_forward) + stage.reform_forward +
               beside(debts.backward, stage.parameter_backward) + stage.reform_backward + slowed;
      }
      return before + stage.update + beside(debts.forward, reforms) +
             (all - 1) * beside(forward, stage.reform_forward) + beside(debts.backward, conjugates) +
             (all - 1) * beside(backward, stage.reform_backward) + slowed;
    case CostFormula::Sum:
      return before + stage.update + all * (forward + backward + stage.reform_forward + stage.reform_backward) +
             stage.parameter_forward + stage.parameter_backward;
  }
  return before;
}

void ReplicaLane::add(std::uint64_t microbatches, double debt, const StageTimes& stage, double interference)
{
  const bool is_whole = microbatches == 1;
  const double conjugates = stage.parameter_backward + (is_whole ? 0 : stage.reform_backward);
  const double beside_debt = overlapped(debt, conjugates, interference);
  const double rest = is_whole ? stage.reform_backward
                               : static_cast<double>(microbatches - 1) *
                                     overlapped(stage.backward, stage.reform_backward, interference);
  // What is left of the backward pass when the gradients are there: made by the stage, or brought by its conjugates.
  double left = beside_debt;
  if (stage.parameter_backward > 0) {
    left -= conjugates;
  } else if (is_whole) {
    left += rest;
  }
  behind += stage.across / interference;
  overhang = std::max(overhang, behind - left);
  behind -= beside_debt + rest;
}

Debts last_weights(CostFormula formula)
{
  if (formula == CostFormula::Sum) return {0, 0};
  return {1, formula == CostFormula::Duplex ? 1.0 : 0.0};
}

std::span<const Debts> extreme_weights(CostFormula formula)
{
  static constexpr std::array<Debts, 2> paper = {{{0, 0}, {1, 0}}};
  static constexpr std::array<Debts, 2> code = {{{0, 1}, {1, 1}}};
  static constexpr std::array<Debts, 2> symmetric = {{{0, 0}, {1, 1}}};  // backward is twice forward
  static constexpr std::array<Debts, 1> none = {{{1, 1}}};
  static constexpr std::array<Debts, 4> duplex = {{{0, 0}, {0, 1}, {1, 0}, {1, 1}}};
  static constexpr std::array<Debts, 1> sum = {{{0, 0}}};
  switch (formula) {
    case CostFormula::Paper:
      return paper;
    case CostFormula::Code:
      return code;
    case CostFormula::Symmetric:
      return symmetric;
    case CostFormula::None:
      return none;
    case CostFormula::Duplex:
      return duplex;
    case CostFormula::Sum:
      return sum;
  }
  return {};
}

std::map<ReformKind, std::uint64_t> reforms_of(const Strategy& strategy, Rules rules)
{
  std::map<ReformKind, std::uint64_t> counts;
  for (const auto& stage : strategy.stages) {
    for (const auto& [tensor, from, to] : stage.reforms) ++counts[reform_between(from, to, rules)->forward];
  }
  return counts;
}

void add_reforms(const StrategyProblem& problem, std::vector<StrategyStage>& stages)
{
  std::vector<std::vector<Form>> forms(problem.is_parameter.size());  // of each tensor: as made, and as reformed
  for (auto& stage : stages) {
    stage.reforms.clear();
    for (std::size_t i = stage.first; i <= stage.last; ++i) {
      const StrategyNode& node = problem.nodes[i];
      const Signature& signature = node.options[stage.options[i - stage.first]].signature;
      for (std::size_t k = 0; k < node.inputs.size(); ++k) {
        auto& available = forms[node.inputs[k]];
        const Form needed = signature.inputs[k];
        if (std::find(available.begin(), available.end(), needed) != available.end()) continue;
        ensure(available.size() == 1 && reform_between(available.front(), needed, problem.rules) != nullptr,
               "a strategy whose forms no reform makes");
        stage.reforms.push_back({node.inputs[k], available.front(), needed});
        available.push_back(needed);
      }
      for (std::size_t k = 0; k < node.outputs.size(); ++k) forms[node.outputs[k]] = {signature.outputs[k]};
    }
  }
}

StrategyCost cost_of(const StrategyProblem& problem, CostFormula formula, const std::vector<StrategyStage>& stages)
{
  const auto all = static_cast<double>(problem.microbatches);
  StrategyCost cost;
  cost.memory.resize(problem.kinds());
  cost.compute.resize(problem.kinds());
  double time = 0;
  Debts debts;
  ReplicaLane lane;
  for (const auto& stage : stages) {
    StageTimes times;
    std::vector<Load> loads(problem.kinds());
    for (std::size_t i = stage.first; i <= stage.last; ++i) {
      const auto& option = problem.nodes[i].options[stage.options[i - stage.first]];
      for (std::size_t kind = 0; kind < loads.size(); ++kind) loads[kind] += option.loads[kind];
      times.update += option.update().value;
      times.across += option.across().value;
    }
    if (times.across > 0) times.across += problem.across_latency.value;
    for (std::size_t kind = 0; kind < loads.size(); ++kind) {
      times.forward = std::max(times.forward, loads[kind].forward.value);
      times.backward = std::max(times.backward, loads[kind].backward.value);
      cost.memory[kind] += loads[kind].memory;
      cost.compute[kind] += all * (loads[kind].forward + loads[kind].backward) + loads[kind].update;
    }
    for (const auto& [tensor, from, to] : stage.reforms) {
      const ReformCost reform = problem.reform_cost(tensor, from, to);
      const bool is_parameter = problem.is_parameter[tensor];
      times.add_reform(reform, is_parameter);
      cost.collectives += (is_parameter ? 1 : all) * (reform.forward + reform.backward);
      for (std::size_t kind = 0; kind < reform.memory.size(); ++kind) cost.memory[kind] += reform.memory[kind];
    }
    const double before = time;
    time = accumulated(formula, problem.microbatches, before, debts, times, problem.interference);
    cost.stages.emplace_back(time - before);
    if (formula == CostFormula::Duplex) lane.add(problem.microbatches, debts.backward, times, problem.interference);
    debts = times.debts();
  }
  cost.time = Seconds(time + lane.overhang + debts.times(last_weights(formula)));
  return cost;
}

}  // namespace isobar::allocators::spmd
