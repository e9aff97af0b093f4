#pragma once

#include "core/spmd/form.hpp"
#include "core/spmd/operator_graph.hpp"

#include <vector>

namespace isobar::spmd {

/// Forms of inputs from which an operator computes outputs in their forms, without communication.
struct Signature {
  std::vector<Form> inputs;
  std::vector<Form> outputs;

  friend bool operator==(const Signature&, const Signature&) = default;
};

/// All signatures of an operator, in the order in which searches list them.
///
/// Corrected: from what the operator computes. Each dimension that may be divided gives one: inputs that have it are
/// divided along it, others whole; so are outputs, and where the operator adds up along the dimension, outputs are
/// addends. Operators that are linear in an input also take addends of it. An input that is added to a product (a bias)
/// is an addend where the product is one.
///
/// Published: those of the published code, in its order. Two are wrong: `attention` by heads contracts slices of q, k
/// and v, gives the first device the weights of q alone, and adds the output's bias P times; `combine` reads its
/// weights divided by experts for an output divided by tokens. It lacks others, such as sums of addends.
std::vector<Signature> signatures_of(const OperatorGraph& graph, const Operator& node, Rules rules);

}  // namespace isobar::spmd
