#include "allocators/spmd/strategy.hpp"

#include "core/names.hpp"

#include <algorithm>

namespace isobar::allocators::spmd {

namespace {

constexpr NameTable<CostFormula, 4> formulas = {{{CostFormula::Paper, "paper"},
                                                 {CostFormula::Code, "code"},
                                                 {CostFormula::Symmetric, "symmetric"},
                                                 {CostFormula::None, "none"}}};

}  // namespace

StrategyProblem make_problem(const OperatorGraph& graph, Rules rules, const ParityProfile& profile)
{
  StrategyProblem problem;
  problem.rules = rules;
  problem.profile = profile;
  for (const auto& tensor : graph.tensors) problem.sizes.push_back(tensor.size);
  const auto is_slice = [](Form form) { return form.kind == Form::Kind::Gather; };
  for (const auto& node : graph.operators) {
    StrategyNode& entry = problem.nodes.emplace_back();
    entry.inputs = node.inputs;
    entry.outputs = node.outputs;
    for (auto& signature : signatures_of(graph, node, rules)) {
      const bool is_divided = std::any_of(signature.inputs.begin(), signature.inputs.end(), is_slice) ||
                              std::any_of(signature.outputs.begin(), signature.outputs.end(), is_slice);
      const Seconds whole = node.forward / profile.device_flops;
      entry.options.push_back(
          {std::move(signature), is_divided ? whole / static_cast<double>(profile.devices) : whole});
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

double accumulated(CostFormula formula, double before, double debt, double forward, double reform_forward,
                   double reform_backward)
{
  const double backward = 2 * forward;
  switch (formula) {
    case CostFormula::Paper:
      return before + std::max(debt, reform_forward) + std::max(forward, reform_forward);
    case CostFormula::Code:
      return before + std::max(debt, reform_forward) + std::max(forward, reform_forward) + 2 * debt + reform_backward +
             backward + reform_backward;
    case CostFormula::Symmetric:
      return before + std::max(debt, reform_forward) + std::max(forward, reform_forward) +
             std::max(2 * debt, reform_backward) + std::max(backward, reform_backward);
    case CostFormula::None:
      return before + debt + reform_forward + forward + reform_forward + 2 * debt + reform_backward + backward +
             reform_backward;
  }
  return before;
}

std::map<ReformKind, std::uint64_t> reforms_of(const Strategy& strategy, Rules rules)
{
  std::map<ReformKind, std::uint64_t> counts;
  for (const auto& stage : strategy.stages) {
    for (const auto& [tensor, from, to] : stage.reforms) ++counts[reform_between(from, to, rules)->forward];
  }
  return counts;
}

}  // namespace isobar::allocators::spmd
