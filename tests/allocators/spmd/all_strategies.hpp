#pragma once

#include "allocators/spmd/strategy.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include <vector>

/// Every strategy of a small graph, one after the other; shares no code with the search but the table of reforms.
namespace isobar::allocators::spmd::plain {

class AllStrategies {
 public:
  explicit AllStrategies(const StrategyProblem& problem) : problem_(problem), forms_(problem.sizes.size()) {}

  /// The least cost by each formula, in the order of CostFormula; infinity without a strategy.
  std::array<double, 4> least_costs()
  {
    least_.fill(std::numeric_limits<double>::infinity());
    stages_ = {{}};
    visit(0);
    return least_;
  }

 private:
  struct Stage {
    std::size_t first = 0;
    std::size_t count = 0;
    bool has_reform = false;
    double forward = 0, reform_forward = 0, reform_backward = 0;
  };

  bool is_complete(std::size_t i) const
  {
    const Stage& stage = stages_[i];
    return stage.count > 0 && stage.count <= 11 && (stage.has_reform || i == 0 || stages_[i - 1].count == 11);
  }

  void visit(std::size_t node)
  {
    if (node == problem_.nodes.size()) {
      if (is_complete(stages_.size() - 1)) judge();
      return;
    }
    compute(node);
    if (is_complete(stages_.size() - 1)) {
      stages_.push_back({node});
      compute(node);
      stages_.pop_back();
    }
  }

  /// Continues the last stage with each option of a node.
  void compute(std::size_t node)
  {
    const StrategyNode& here = problem_.nodes[node];
    const Stage stage_before = stages_.back();
    const auto forms_before = forms_;
    for (const auto& option : here.options) {
      Stage& stage = stages_.back();
      bool is_legal = true;
      for (std::size_t k = 0; k < here.inputs.size(); ++k) {
        auto& forms = forms_[here.inputs[k]];
        const Form needed = option.signature.inputs[k];
        if (std::find(forms.begin(), forms.end(), needed) != forms.end()) continue;
        const Reform* reform = reform_between(forms.front(), needed, problem_.rules);
        is_legal = reform != nullptr && forms.size() == 1 && producer_of(here.inputs[k]) < stage.first;
        if (!is_legal) break;
        forms.push_back(needed);
        stage.has_reform = true;
        stage.reform_forward += problem_.profile.time_of(reform->forward, problem_.sizes[here.inputs[k]]).value;
        stage.reform_backward += problem_.profile.time_of(reform->backward, problem_.sizes[here.inputs[k]]).value;
      }
      if (is_legal) {
        for (std::size_t k = 0; k < here.outputs.size(); ++k) {
          forms_[here.outputs[k]] = {option.signature.outputs[k]};
        }
        stage.forward += option.forward.value;
        ++stage.count;
        visit(node + 1);
      }
      stages_.back() = stage_before;
      forms_ = forms_before;
    }
  }

  std::size_t producer_of(std::size_t tensor) const
  {
    for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
      const auto& outputs = problem_.nodes[i].outputs;
      if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end()) return i;
    }
    return problem_.nodes.size();
  }

  /// Facts of the paper: phase A hides reforms behind what the second half owes, phase B behind the first half's stage.
  void judge()
  {
    double paper = 0, code = 0, symmetric = 0, none = 0, debt = 0;
    for (const auto& stage : stages_) {
      const double f = stage.forward, cf = stage.reform_forward, cb = stage.reform_backward;
      const double hidden = std::max(debt, cf) + std::max(f, cf);
      paper += hidden;
      code += hidden + (2 * debt + cb) + (2 * f + cb);
      symmetric += hidden + std::max(2 * debt, cb) + std::max(2 * f, cb);
      none += (debt + cf) + (f + cf) + (2 * debt + cb) + (2 * f + cb);
      debt = f;
    }
    const std::array<double, 4> costs = {paper, code, symmetric, none};
    for (std::size_t i = 0; i < costs.size(); ++i) least_[i] = std::min(least_[i], costs[i] + debt);
  }

  const StrategyProblem& problem_;
  std::vector<std::vector<Form>> forms_;  // of each tensor: as made, and as reformed
  std::vector<Stage> stages_;
  std::array<double, 4> least_{};
};

}  // namespace isobar::allocators::spmd::plain
