#pragma once

#include "allocators/spmd/strategy.hpp"

#include <cstdint>
#include <exception>
#include <limits>
#include <optional>

namespace isobar::allocators::spmd {

/// Finds the signatures of all operators, and the reforms between them, of least cost.
///
/// A strategy is a sequence of stages: up to 11 operators in the order of the graph, each with a signature. Where it
/// needs a form that a tensor lacks, the stage begins with a reform of it, if the tensor existed before the stage; a
/// tensor has at most one reform. By the formulas of HiDup, a stage needs a reform, unless it is the first or follows
/// one of 11 operators. By ours, it begins anywhere, parameters exist before all stages and do not count as operators.
///
/// Dynamic program over states: how many operators are done, and the forms of each tensor that is read later. A state
/// keeps those labels (time so far, debts, and memory if it is limited) that no other one dominates. Exact:
/// - The costs to come depend on debts by terms u·debt + w·debt_b at their extremes (extreme_weights), since they add
///   max(debt, x) + max(debt_b, y) for reforms x and y >= 0. So label 1 dominates label 2 if for all these weights its
///   time + u·debt + w·debt_b is not above that of label 2, and so is its memory.
/// - With replicas, their lane either lasts as long as the stages so far decide, or a stage that follows decides that
///   (ReplicaLane). Label 1 is then no worse in both cases.
/// - A label whose memory exceeds a limit with the least that the other operators need dies. Labels that stay below it
///   with the most that they can need have the same memory.
/// - Of the forms of parameters in a stage (Bundles), those that cost no less in everything are left out.
/// The first of several equal strategies stays; states come in the order of their forms, signatures from last to first.
///
/// O(operators) for bounded widths of the graph, and independent of the number of devices; exponential in the width.
/// Deterministic. It leaves out signatures whose outputs no strategy could use.
///
/// Source: HiDup, section 4; its published code prunes by (time, debt), which keeps more labels.
///
/// @returns no strategy if none exists.
/// @throws Interrupted, and TooManyLabels where the search keeps more than `most_labels`.
std::optional<Strategy> find_strategy(const StrategyProblem& problem, CostFormula formula,
                                      std::uint64_t most_labels = std::numeric_limits<std::uint32_t>::max());

/// A search was given up.
struct TooManyLabels : std::exception {};

}  // namespace isobar::allocators::spmd
