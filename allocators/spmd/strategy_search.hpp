#pragma once

#include "allocators/spmd/strategy.hpp"

namespace isobar::allocators::spmd {

/// Finds the signatures of all operators, and the reforms between them, of least cost.
///
/// A strategy is a sequence of stages: up to 11 operators in the order of the graph, each with a signature. Where it
/// needs a form that a tensor lacks, the stage begins with a reform of it, if the tensor existed before the stage; a
/// tensor has at most one reform. A stage needs a reform, unless it is the first or follows one of 11 operators.
///
/// Dynamic program over states: how many operators are done, and the forms of each tensor that is read later. A state
/// keeps those labels (time so far, debt) that no other one dominates: label 1 dominates label 2 if, for the least and
/// the greatest weight that a debt can have in the costs to come, its sum of time and weighted debt is not above that
/// of label 2. Exact. The first of several equal strategies stays; states come in the order of their forms, signatures
/// from last to first.
///
/// O(operators) for bounded widths of the graph, and independent of the number of devices; exponential in the width.
/// Deterministic. It leaves out signatures whose outputs no strategy could use.
///
/// Source: HiDup, section 4; its published code prunes by (time, debt), which keeps more labels.
///
/// @returns no strategy if none exists.
/// @throws Interrupted
std::optional<Strategy> find_strategy(const StrategyProblem& problem, CostFormula formula);

}  // namespace isobar::allocators::spmd
