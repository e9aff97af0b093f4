#pragma once

#include "allocators/spmd/parity_profile.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/reform.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::allocators::spmd {

using namespace isobar::spmd;

/// The allocator's name in options.
inline constexpr std::string_view allocator_name = "spmd";

/// What an operator takes of a device for one micro-batch.
struct Load {
  Seconds forward;
  Seconds backward;
  Seconds update = {};  ///< of its parameter, once a step
  Bytes memory = {};    ///< of its parameter, and of what all micro-batches keep for the backward pass
  Seconds across = {};  ///< of adding up its parameter's gradient across replicas, but for the latency of a part

  Load& operator+=(const Load& other);
  bool operator==(const Load&) const = default;
};

/// What a reform takes, and its conjugate in the backward pass: of a parameter once a step, otherwise for one
/// micro-batch.
struct ReformCost {
  Seconds forward;
  Seconds backward;
  std::vector<Bytes> memory = {};  ///< of a device of each kind, from forward to backward; empty: none

  Bytes memory_of(std::size_t kind) const { return memory.empty() ? Bytes() : memory[kind]; }
  bool operator==(const ReformCost&) const = default;
};

/// An operator as the search sees it.
struct StrategyNode {
  struct Option {
    Signature signature;
    std::vector<Load> loads;  ///< of a device of each kind

    /// The longest update of a kind, and the longest sum across replicas.
    Seconds update() const;
    Seconds across() const;
  };

  std::vector<std::size_t> inputs;   ///< tensors
  std::vector<std::size_t> outputs;  ///< tensors
  std::vector<Option> options;
};

/// A graph whose operators are to be divided among devices of a few kinds. Tensors are numbered in the order of their
/// producers; some may have none, and no readers.
struct StrategyProblem {
  std::vector<StrategyNode> nodes;
  /// By tensor, whether it is a parameter: reformed once a step, in any stage up to that of its reader.
  std::vector<bool> is_parameter;
  Rules rules = Rules::Corrected;
  std::uint64_t devices = 1;
  /// The cost of a reform of a tensor that `rules` have.
  std::function<ReformCost(std::size_t tensor, Form from, Form to)> reform_cost;
  std::uint64_t microbatches = 2;  ///< of a step; formulas of HiDup do not use it
  double interference = 1;         ///< how many times longer devices compute beside a collective; likewise
  Seconds across_latency = {};     ///< of the sum of a part's gradients across replicas
  bool has_replicas = false;       ///< of the devices, each for other samples
  std::vector<Bytes> memory = {};  ///< of a device of each kind; empty: not limited
  /// In place of a limit: for each kind, what a search adds to the cost for a byte that a strategy needs. Empty: none.
  std::vector<double> memory_prices = {};

  std::size_t kinds() const { return nodes.front().options.front().loads.size(); }
};

/// The problem of HiDup for a graph: an operator takes FLOPs / device_flops, divided by the devices if any form of its
/// signature is Gather, and backward twice that. Parameters are tensors like others.
StrategyProblem make_problem(const OperatorGraph& graph, Rules rules, const ParityProfile& profile);

/// How the time of a step is estimated in which micro-batches take turns: while one computes, another one's collectives
/// run.
///
/// For a stage, f and fb are its compute of a micro-batch forward and backward, c and cb its reforms of activations of
/// a micro-batch, p and pb its reforms of parameters, and u the sum of its parameters' longest updates. `debt` and
/// `debt_b` are the f and fb of the stage before, which the last micro-batch still owes. Each formula adds to the time
/// so far, and the last debts at the end. Those of HiDup have fb = 2f, count p with c, and have two micro-batches:
enum class CostFormula : std::uint8_t {
  Paper,      ///< max(debt, c) + max(f, c); at the end debt
  Code,       ///< the same, + 2·debt + cb + 2f + cb: backward without overlap
  Symmetric,  ///< the paper's, + max(2·debt, cb) + max(2f, cb)
  None,       ///< debt + c + f + c + 2·debt + cb + 2f + cb: no overlap
  /// Ours, for k micro-batches: u + max(debt, p + c) + (k-1)·max(f, c) + max(debt_b, pb + cb) + (k-1)·max(fb, cb). For
  /// k = 1, u + max(debt, p) + c + max(debt_b, pb) + cb: only reforms of parameters can run beside the micro-batch.
  /// With interference, max is `overlapped`. With replicas, as long as their lane outlasts the backward pass, too
  /// (ReplicaLane).
  Duplex,
  Sum  ///< u + k·(f + fb + c + cb) + p + pb: everything one after the other
};

/// "paper", "code", "symmetric", "none": the formulas of HiDup.
std::string_view name_of(CostFormula formula);
std::optional<CostFormula> cost_formula_from_name(std::string_view name);
std::vector<std::string> cost_formula_names();

/// The compute that the last micro-batch still owes of a stage; also weights of it.
struct Debts {
  double forward = 0;
  double backward = 0;

  double times(const Debts& weights) const { return weights.forward * forward + weights.backward * backward; }
};

/// What a stage adds to a formula.
struct StageTimes {
  double forward = 0;  ///< the largest of a device, like the next two
  double backward = 0;
  double update = 0;
  double reform_forward = 0;  ///< of activations
  double reform_backward = 0;
  double parameter_forward = 0;  ///< reforms of parameters
  double parameter_backward = 0;
  double across = 0;  ///< the sum of its gradients across replicas

  Debts debts() const { return {forward, backward}; }
  void add_reform(const ReformCost& cost, bool of_parameter);
  StageTimes& operator+=(const StageTimes& other);
  bool operator==(const StageTimes&) const = default;
};

/// The time until a computation and a collective that begin together have ended, if the former is `interference` times
/// slower while the latter lasts: interference x compute if the collective outlasts that, else what it has not computed
/// beside the collective comes after it.
inline double overlapped(double compute, double collective, double interference)
{
  return std::max(collective, compute + (1 - 1 / interference) * collective);
}
/// The time so far after a stage.
double accumulated(CostFormula formula, std::uint64_t microbatches, double before, const Debts& debts,
                   const StageTimes& stage, double interference = 1);
/// The sums of gradients across replicas, in formula Duplex. They have a lane of their own: the sum of a stage begins
/// when its gradients are there, so that those of later stages come first, and runs beside the backward passes of
/// earlier ones. Adds what interference makes of these to no time.
struct ReplicaLane {
  double behind = 0;    ///< what the sums of the stages so far take, less the backward passes of these stages
  double overhang = 0;  ///< how long the lane outlasts the backward pass, as far as these stages decide that

  /// Adds a stage after one that owes `debt` of backward compute.
  void add(std::uint64_t microbatches, double debt, const StageTimes& stage, double interference);
};
/// How the last debts count at the end.
Debts last_weights(CostFormula formula);
/// The extreme weights that debts can have in the costs of what follows.
std::span<const Debts> extreme_weights(CostFormula formula);

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

/// Lists the reforms that stages need with the options of their operators.
/// @throws std::logic_error for a form that no reform makes, and for a second reform of a tensor.
void add_reforms(const StrategyProblem& problem, std::vector<StrategyStage>& stages);

/// The cost of a strategy's stages, and of which stages it consists.
struct StrategyCost {
  Seconds time;                  ///< by the formula
  std::vector<Seconds> stages;   ///< what each stage adds to it; all but the last debts, and the lane of replicas
  std::vector<Bytes> memory;     ///< of a device of each kind
  std::vector<Seconds> compute;  ///< of a device of each kind: all micro-batches, forward and backward, and updates
  Seconds collectives;           ///< of all micro-batches
};
StrategyCost cost_of(const StrategyProblem& problem, CostFormula formula, const std::vector<StrategyStage>& stages);

}  // namespace isobar::allocators::spmd
