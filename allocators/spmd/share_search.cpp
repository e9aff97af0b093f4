#include "allocators/spmd/share_search.hpp"

#include "allocators/spmd/linear_program.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace isobar::allocators::spmd {

namespace {

using Terms = LinearProgram::Terms;
using Variable = LinearProgram::Variable;

/// A sum of variables and a number.
struct Sum {
  double number = 0;
  Terms terms;

  void add(const Sum& other, double factor = 1)
  {
    number += factor * other.number;
    for (const auto& [variable, times] : other.terms) terms.emplace_back(variable, factor * times);
  }
};

class ShareProgram {
 public:
  ShareProgram(const DividedGraph& divided, const StrategyProblem& problem) : divided_(divided), problem_(problem)
  {
    Terms all;
    for (const auto& kind : divided.kinds()) {
      shares_.push_back(program_.add_variable());
      all.emplace_back(shares_.back(), static_cast<double>(kind.count));
    }
    program_.require_equal(1, all);
    fixed_memory_.resize(shares_.size());
    memory_per_share_.resize(shares_.size());
  }

  void add(const std::vector<StrategyStage>& stages)
  {
    const auto k = static_cast<double>(problem_.microbatches);
    Compute debts(shares_.size());
    for (const auto& stage : stages) {
      const Compute compute = compute_of(stage);
      const Collectives reforms = collectives_of(stage);
      for (const bool is_forward : {true, false}) {
        const auto& [of_parameters, of_activations] = is_forward ? reforms.forward : reforms.backward;
        Sum first = of_parameters;
        if (problem_.microbatches == 1) {
          add_cost(of_activations);
        } else {
          first.add(of_activations);
        }
        add_largest(1, is_forward ? debts.forward : debts.backward, first);
        if (problem_.microbatches > 1) {
          add_largest(k - 1, is_forward ? compute.forward : compute.backward, of_activations);
        }
      }
      add_largest(1, compute.update, {});
      debts = compute;
    }
    add_largest(1, debts.forward, {});
    add_largest(1, debts.backward, {});
    for (std::size_t kind = 0; kind < shares_.size(); ++kind) {
      const double limit = problem_.memory[kind].value;
      program_.require_at_least(fixed_memory_[kind].value / limit - 1,
                                {{shares_[kind], -memory_per_share_[kind].value / limit}});
    }
  }

  std::optional<std::vector<double>> solve() const
  {
    const auto values = program_.minimize();
    if (!values) return std::nullopt;
    std::vector<double> shares;
    for (std::size_t i = 0; i < divided_.devices().count(); ++i) {
      shares.push_back(std::max(0.0, (*values)[shares_[divided_.kind_of(i)]]));
    }
    const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (double& share : shares) share /= all;
    return shares;
  }

 private:
  /// The solver's tolerances are for numbers near 1.
  static constexpr double unit = 1e6;  // microseconds

  /// Of each kind, the compute of a stage.
  struct Compute {
    explicit Compute(std::size_t kinds) : forward(kinds), backward(kinds), update(kinds) {}
    std::vector<Sum> forward, backward, update;
  };
  struct Reforms {
    Sum of_parameters, of_activations;
  };
  struct Collectives {
    Reforms forward, backward;
  };

  Sum linear(std::size_t kind, Seconds fixed, Seconds per_share) const
  {
    Sum sum{unit * fixed.value, {}};
    if (per_share > Seconds(0)) sum.terms.emplace_back(shares_[kind], unit * per_share.value);
    return sum;
  }

  Compute compute_of(const StrategyStage& stage)
  {
    Compute compute(shares_.size());
    for (std::size_t kind = 0; kind < shares_.size(); ++kind) {
      Load fixed;
      Load per_share;
      for (std::size_t i = stage.first; i <= stage.last; ++i) {
        const auto& signature = problem_.nodes[i].options[stage.options[i - stage.first]].signature;
        const auto load = divided_.linear_load(i, signature, kind);
        fixed += load.fixed;
        per_share += load.per_share;
      }
      compute.forward[kind] = linear(kind, fixed.forward, per_share.forward);
      compute.backward[kind] = linear(kind, fixed.backward, per_share.backward);
      compute.update[kind] = linear(kind, fixed.update, per_share.update);
      fixed_memory_[kind] += fixed.memory;
      memory_per_share_[kind] += per_share.memory;
    }
    return compute;
  }

  Collectives collectives_of(const StrategyStage& stage)
  {
    Collectives collectives;
    for (const auto& reformed : stage.reforms) {
      const auto& [tensor, from, to] = reformed;
      const Reform* reform = reform_between(from, to, problem_.rules);
      const ReformCost cost = problem_.reform_cost(tensor, from, to);
      const bool is_parameter = problem_.is_parameter[tensor];
      const auto add_to = [&](Reforms& reforms, ReformKind kind, Form its_from, Seconds now) {
        Sum& sum = is_parameter ? reforms.of_parameters : reforms.of_activations;
        sum.add(collective(kind, reformed.tensor, its_from, now));
      };
      add_to(collectives.forward, reform->forward, from, cost.forward);
      add_to(collectives.backward, reform->backward, gradient_form(to), cost.backward);
      for (std::size_t kind = 0; kind < cost.memory.size(); ++kind) fixed_memory_[kind] += cost.memory[kind];
    }
    return collectives;
  }

  /// The time of a collective: a variable, the same for equal ones, or a number if the shares do not matter.
  Sum collective(ReformKind kind, std::size_t tensor, Form from, Seconds now)
  {
    const auto opcode = opcode_of(kind);
    const DeviceGroup& group = divided_.devices().group;
    const bool depends =
        opcode && ((*opcode == Opcode::AllGather && group.algorithm == Algorithm::Ring) || *opcode == Opcode::AllToAll);
    if (!depends || from.kind != Form::Kind::Gather) return {unit * now.value, {}};
    const Bytes size = divided_.graph().tensors[tensor].size;
    const auto [place, is_new] = collectives_.try_emplace({*opcode, size}, 0);
    if (is_new) {
      place->second = program_.add_variable();
      require_time(place->second, unit * now.value, *opcode == Opcode::AllGather ? gathering(size) : exchange(size));
    }
    return {0, {{place->second, 1}}};
  }

  /// What the flows of a collective take: fixed + share of a device of the kind · per_share.
  struct FlowTime {
    double fixed = 0;
    double per_share = 0;
    std::size_t kind = 0;

    auto operator<=>(const FlowTime&) const = default;
  };

  std::set<FlowTime> gathering(Bytes size) const
  {
    const std::size_t count = divided_.devices().count();
    std::set<FlowTime> flows;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t receiver = (i + 1) % count;
      const TransferTimes whole = divided_.devices().group.transfer(i, receiver, size);
      const double latencies = static_cast<double>(count - 1) * whole.latency.value;
      flows.insert({latencies + whole.data.value, -whole.data.value, divided_.kind_of(receiver)});
    }
    return flows;
  }

  /// Of each round.
  std::set<FlowTime> exchange(Bytes size) const
  {
    const std::size_t count = divided_.devices().count();
    std::set<FlowTime> flows;
    for (std::size_t from = 0; from < count; ++from) {
      for (std::size_t to = 0; to < count; ++to) {
        if (to == from) continue;
        const TransferTimes whole = divided_.devices().group.transfer(from, to, size);
        flows.insert({whole.latency.value, whole.data.value / static_cast<double>(count), divided_.kind_of(from)});
      }
    }
    return flows;
  }

  /// A collective lasts as long as its longest flow does, times what makes it last `now` with the shares so far: its
  /// rounds, and flows that share links.
  void require_time(Variable time, double now, const std::set<FlowTime>& flows)
  {
    double longest = 0;
    for (const auto& flow : flows) {
      const double share = divided_.shares()[divided_.kinds()[flow.kind].first];
      longest = std::max(longest, flow.fixed + flow.per_share * share);
    }
    const double factor = longest > 0 ? now / longest : 0;
    for (const auto& flow : flows) {
      program_.require_at_least(factor * flow.fixed, {{time, 1}, {shares_[flow.kind], -factor * flow.per_share}});
    }
  }

  void add_cost(const Sum& sum)
  {
    for (const auto& [variable, factor] : sum.terms) program_.add_cost(variable, factor);
  }

  /// Adds the largest of the computations of each kind and a collective, one beside the other (see overlapped), to the
  /// objective.
  void add_largest(double weight, const std::vector<Sum>& kinds, const Sum& other)
  {
    const double slowing = 1 - 1 / problem_.interference;
    const Variable largest = program_.add_variable(weight);
    const auto require = [&](const Sum& sum) {
      if (sum.number == 0 && sum.terms.empty()) return;
      Terms terms = {{largest, 1}};
      for (const auto& [variable, factor] : sum.terms) terms.emplace_back(variable, -factor);
      program_.require_at_least(sum.number, terms);
    };
    for (Sum sum : kinds) {
      if (slowing > 0) sum.add(other, slowing);
      require(sum);
    }
    require(other);
  }

  const DividedGraph& divided_;
  const StrategyProblem& problem_;
  LinearProgram program_;
  std::vector<Variable> shares_;  // of each kind, that of a device
  std::map<std::pair<Opcode, Bytes>, Variable> collectives_;
  std::vector<Bytes> fixed_memory_, memory_per_share_;
};

}  // namespace

std::optional<std::vector<double>> best_shares(const DividedGraph& divided, const StrategyProblem& problem,
                                               const std::vector<StrategyStage>& stages)
{
  ShareProgram program(divided, problem);
  program.add(stages);
  return program.solve();
}

}  // namespace isobar::allocators::spmd
