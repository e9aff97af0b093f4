#pragma once

#include "allocators/spmd/parity_profile.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/reform.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::allocators::spmd {

using namespace isobar::spmd;

/// The allocator's name in options.
inline constexpr std::string_view allocator_name = "spmd";

/// An operator as the search sees it.
struct StrategyNode {
  /// A signature and how long a device computes the operator forward with it; backward takes twice as long.
  struct Option {
    Signature signature;
    Seconds forward;
  };

  std::vector<std::size_t> inputs;   ///< tensors
  std::vector<std::size_t> outputs;  ///< tensors
  std::vector<Option> options;
};

/// A graph whose operators are to be divided among equal devices. Tensors are numbered in the order of their producers.
struct StrategyProblem {
  std::vector<StrategyNode> nodes;
  std::vector<Bytes> sizes;  ///< of each tensor
  Rules rules = Rules::Corrected;
  ParityProfile profile;
};

/// The problem of a graph: an operator takes FLOPs / device_flops, divided by the devices if any form of its signature
/// is Gather.
StrategyProblem make_problem(const OperatorGraph& graph, Rules rules, const ParityProfile& profile);

/// How the time of a step is estimated in which two half-batches take turns: while one computes, the other's
/// collectives run. For a stage, f is the forward compute, cf and cb its reforms forward and backward, and `debt` the f
/// of the stage before, which the second half still owes. Each formula adds to the time so far:
enum class CostFormula : std::uint8_t {
  Paper,      ///< max(debt, cf) + max(f, cf)
  Code,       ///< the same, + 2·debt + cb + 2f + cb: backward without overlap
  Symmetric,  ///< the paper's, + max(2·debt, cb) + max(2f, cb)
  None        ///< debt + cf + f + cf + 2·debt + cb + 2f + cb: no overlap
};

/// "paper", "code", "symmetric", "none".
std::string_view name_of(CostFormula formula);
std::optional<CostFormula> cost_formula_from_name(std::string_view name);
std::vector<std::string> cost_formula_names();

/// The time so far after a stage with `forward` compute and reforms of `reform_forward` and `reform_backward`.
double accumulated(CostFormula formula, double before, double debt, double forward, double reform_forward,
                   double reform_backward);

/// Largest number of operators in a stage.
inline constexpr std::size_t longest_stage = 11;

/// Operators that run without a pause, after the reforms that they need.
struct StrategyStage {
  struct ReformedTensor {
    std::size_t tensor = 0;
    Form from, to;
  };

  std::size_t first = 0;  ///< operator
  std::size_t last = 0;
  std::vector<std::size_t> options;  ///< of each operator, its index in StrategyNode::options
  std::vector<ReformedTensor> reforms;
};

/// How many entries a search made.
struct SearchCounts {
  std::uint64_t states = 0;
  std::uint64_t labels = 0;  ///< kept until their state was extended
};

/// A way to divide all operators.
struct Strategy {
  Seconds cost;
  std::vector<StrategyStage> stages;
  SearchCounts counts;
};

/// Reforms of a strategy by kind.
std::map<ReformKind, std::uint64_t> reforms_of(const Strategy& strategy, Rules rules);

}  // namespace isobar::allocators::spmd
