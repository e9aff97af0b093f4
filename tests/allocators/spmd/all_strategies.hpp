#pragma once

#include "allocators/spmd/strategy.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

/// Every strategy of a small graph, one after the other; shares no code with the search but the table of reforms.
namespace isobar::allocators::spmd::plain {

/// The least costs of all strategies; infinity without a strategy.
struct LeastCosts {
  static constexpr double none = std::numeric_limits<double>::infinity();

  std::array<double, 4> published = {none, none, none, none};  ///< in the order of CostFormula
  /// By formula Duplex with k micro-batches, where memory is limited and where it is not.
  std::map<std::uint64_t, double> limited = {{1, none}, {2, none}, {4, none}};
  std::map<std::uint64_t, double> unlimited = {{1, none}, {2, none}, {4, none}};
};

class AllStrategies {
 public:
  explicit AllStrategies(const StrategyProblem& problem) : problem_(problem), forms_(problem.is_parameter.size()) {}

  LeastCosts least_costs()
  {
    for (const bool is_published : {true, false}) {
      is_published_ = is_published;
      stages_ = {stage_at(0)};
      visit(0);
    }
    return least_;
  }

 private:
  struct Stage {
    std::size_t first = 0;
    std::size_t count = 0;
    bool has_reform = false;
    double c = 0, cb = 0, p = 0, pb = 0, u = 0, across = 0;
    std::vector<double> f, fb, memory;  // by kind
  };

  Stage stage_at(std::size_t node) const
  {
    const std::vector<double> none(problem_.kinds(), 0);
    return {node, 0, false, 0, 0, 0, 0, 0, 0, none, none, none};
  }

  bool is_complete(std::size_t i) const
  {
    const Stage& stage = stages_[i];
    if (stage.count == 0 || stage.count > 11) return false;
    return !is_published_ || stage.has_reform || i == 0 || stages_[i - 1].count == 11;
  }

  void visit(std::size_t node)
  {
    if (node == problem_.nodes.size()) {
      if (is_complete(stages_.size() - 1)) judge();
      return;
    }
    compute(node);
    if (is_complete(stages_.size() - 1)) {
      stages_.push_back(stage_at(node));
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
      bool is_legal = true;
      for (std::size_t k = 0; k < here.inputs.size() && is_legal; ++k) {
        is_legal = has_form(here.inputs[k], option.signature.inputs[k]);
      }
      if (is_legal) {
        Stage& stage = stages_.back();
        for (std::size_t k = 0; k < here.outputs.size(); ++k) {
          forms_[here.outputs[k]] = {option.signature.outputs[k]};
        }
        double longest_update = 0;
        double longest_across = 0;
        for (std::size_t kind = 0; kind < problem_.kinds(); ++kind) {
          stage.f[kind] += option.loads[kind].forward.value;
          stage.fb[kind] += option.loads[kind].backward.value;
          longest_update = std::max(longest_update, option.loads[kind].update.value);
          longest_across = std::max(longest_across, option.loads[kind].across.value);
          stage.memory[kind] += option.loads[kind].memory.value;
        }
        stage.u += longest_update;
        stage.across += longest_across;
        ++stage.count;
        visit(node + 1);
      }
      stages_.back() = stage_before;
      forms_ = forms_before;
    }
  }

  /// Whether a tensor has a form, perhaps by a reform, which the last stage then has.
  bool has_form(std::size_t tensor, Form needed)
  {
    Stage& stage = stages_.back();
    auto& forms = forms_[tensor];
    if (std::find(forms.begin(), forms.end(), needed) != forms.end()) return true;
    const Reform* reform = reform_between(forms.front(), needed, problem_.rules);
    const bool is_parameter = problem_.is_parameter[tensor];
    const bool exists = producer_of(tensor) < stage.first || (is_parameter && !is_published_);
    if (reform == nullptr || forms.size() != 1 || !exists) return false;
    const ReformCost cost = problem_.reform_cost(tensor, forms.front(), needed);
    (is_parameter ? stage.p : stage.c) += cost.forward.value;
    (is_parameter ? stage.pb : stage.cb) += cost.backward.value;
    for (std::size_t kind = 0; kind < cost.memory.size(); ++kind) stage.memory[kind] += cost.memory[kind].value;
    stage.has_reform = true;
    forms.push_back(needed);
    return true;
  }

  std::size_t producer_of(std::size_t tensor) const
  {
    for (std::size_t i = 0; i < problem_.nodes.size(); ++i) {
      const auto& outputs = problem_.nodes[i].outputs;
      if (std::find(outputs.begin(), outputs.end(), tensor) != outputs.end()) return i;
    }
    return problem_.nodes.size();
  }

  static double largest(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

  void judge()
  {
    if (is_published_) {
      judge_published();
    } else {
      for (auto& [k, least] : least_.unlimited) {
        const double cost = duplex(static_cast<double>(k));
        least = std::min(least, cost);
        if (fits()) least_.limited[k] = std::min(least_.limited[k], cost);
      }
    }
  }

  /// Facts of the paper: phase A hides reforms behind what the second half owes, phase B behind the first half's stage.
  void judge_published()
  {
    double paper = 0, code = 0, symmetric = 0, none = 0, debt = 0;
    for (const auto& stage : stages_) {
      const double f = largest(stage.f), c = stage.c + stage.p, cb = stage.cb + stage.pb;
      const double hidden = std::max(debt, c) + std::max(f, c);
      paper += hidden;
      code += hidden + (2 * debt + cb) + (2 * f + cb);
      symmetric += hidden + std::max(2 * debt, cb) + std::max(2 * f, cb);
      none += (debt + c) + (f + c) + (2 * debt + cb) + (2 * f + cb);
      debt = f;
    }
    const std::array<double, 4> costs = {paper, code, symmetric, none};
    for (std::size_t i = 0; i < costs.size(); ++i) {
      least_.published[i] = std::min(least_.published[i], costs[i] + debt);
    }
  }

  /// How long a computation and a collective take that begin together, if the first is slower while the second lasts.
  double phase(double compute, double collective) const
  {
    const double slowed = compute * problem_.interference;
    return slowed <= collective ? collective : collective + (compute - collective / problem_.interference);
  }

  /// The lanes of a step: the compute of stage i-1 of the last micro-batch runs beside the reforms of stage i of the
  /// first one; the compute of each micro-batch but the last beside the reforms of the next one.
  double duplex(double k) const
  {
    double forward = 0, updates = 0, owed = 0;
    for (const auto& stage : stages_) {
      const double f = largest(stage.f);
      if (k == 1) {
        forward += phase(owed, stage.p) + stage.c;
      } else {
        forward += phase(owed, stage.p + stage.c) + (k - 1) * phase(f, stage.c);
      }
      updates += stage.u;
      owed = f;
    }
    return forward + owed + backward(k) + updates;
  }

  /// The backward pass, last stage first, until the lane of the sums across replicas has ended, too. While that is
  /// busy, passes are slower; this counts as time after them.
  double backward(double k) const
  {
    double now = largest(stages_.back().fb);
    double lane = 0;
    double slowed = 0;
    for (std::size_t i = stages_.size(); i-- > 0;) {
      const Stage& stage = stages_[i];
      const double next = i > 0 ? largest(stages_[i - 1].fb) : 0;
      double gradients = 0;  // when they are there
      if (k == 1) {
        gradients = stage.pb > 0 ? now + stage.cb + stage.pb : now;
        now += stage.cb + phase(next, stage.pb);
      } else {
        now += (k - 1) * phase(largest(stage.fb), stage.cb);
        gradients = stage.pb > 0 ? now + stage.pb + stage.cb : now;
        now += phase(next, stage.pb + stage.cb);
      }
      if (stage.across == 0) continue;
      const double sum = stage.across + problem_.across_latency.value;
      lane = std::max(lane, gradients) + sum / problem_.interference;
      slowed += sum - sum / problem_.interference;
    }
    return std::max(now, lane) + slowed;
  }

  bool fits() const
  {
    for (std::size_t kind = 0; kind < problem_.memory.size(); ++kind) {
      double needed = 0;
      for (const auto& stage : stages_) needed += stage.memory[kind];
      if (needed > problem_.memory[kind].value) return false;
    }
    return true;
  }

  const StrategyProblem& problem_;
  bool is_published_ = true;
  std::vector<std::vector<Form>> forms_;  // of each tensor: as made, and as reformed
  std::vector<Stage> stages_;
  LeastCosts least_;
};

}  // namespace isobar::allocators::spmd::plain
