#include "allocators/spmd/strategy_bound.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/spmd/strategy_search.hpp"

#include <algorithm>
#include <limits>

namespace isobar::allocators::spmd {

namespace {

/// The problem of one kind of devices, where compute counts λ times, and collectives 1-λ times.
StrategyProblem weighted(const StrategyProblem& problem, std::size_t kind, double compute)
{
  StrategyProblem result;
  result.is_parameter = problem.is_parameter;
  result.rules = problem.rules;
  result.microbatches = problem.microbatches;
  result.reform_cost = [&problem, factor = 1 - compute](std::size_t tensor, Form from, Form to) {
    const ReformCost cost = problem.reform_cost(tensor, from, to);
    return ReformCost{factor * cost.forward, factor * cost.backward};
  };
  for (const auto& node : problem.nodes) {
    StrategyNode& entry = result.nodes.emplace_back();
    entry.inputs = node.inputs;
    entry.outputs = node.outputs;
    for (const auto& option : node.options) {
      const Load& load = option.loads[kind];
      entry.options.push_back(
          {option.signature, {{compute * load.forward, compute * load.backward, compute * load.update}}});
    }
  }
  return result;
}

}  // namespace

Seconds lower_bound(const StrategyProblem& problem, std::size_t kind)
{
  constexpr int most_searches = 12;
  struct Line {
    double compute = 0, collectives = 0;

    double at(double factor) const { return factor * compute + (1 - factor) * collectives; }
    double slope() const { return compute - collectives; }
  };
  Line rising{1, 0};  // any lines that cross within
  Line falling{0, 1};
  bool has_rising = false;
  bool has_falling = false;
  double best = 0;
  double factor = 0.5;
  for (int i = 0; i < most_searches; ++i) {
    const auto strategy = find_strategy(weighted(problem, kind, factor), CostFormula::Sum);
    if (!strategy) return Seconds(std::numeric_limits<double>::infinity());
    best = std::max(best, strategy->cost.value);
    const StrategyCost cost = cost_of(problem, CostFormula::Sum, strategy->stages);
    const Line line{cost.compute[kind].value, cost.collectives.value};
    (line.slope() > 0 ? rising : falling) = line;
    (line.slope() > 0 ? has_rising : has_falling) = true;
    if (!has_rising || !has_falling) {
      const double end = has_rising ? 1 : 0;
      if (factor == end) break;
      factor = end;
      continue;
    }
    factor = falling.slope() == rising.slope()
                 ? 0.5
                 : (falling.collectives - rising.collectives) / (rising.slope() - falling.slope());
    factor = std::clamp(factor, 0.0, 1.0);
    if (rising.at(factor) <= best * (1 + tolerance)) break;
  }
  return Seconds(best);
}

}  // namespace isobar::allocators::spmd
