#pragma once

#include "core/spmd/form.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace isobar::spmd {

/// For each dimension of each tensor, how many units it can be divided into. A slice is a number of whole units, so
/// that the slices of all tensors that share the dimension fit each other: where 12 heads of 64 numbers are next to
/// each other in a dimension of 768, its units are the 12 heads. O(graph).
std::vector<std::vector<std::uint64_t>> units_of_dimensions(const OperatorGraph& graph);

/// For each tensor, its dimension whose slices are samples of the batch; none if it has none, such as a parameter.
/// O(graph).
std::vector<std::optional<std::uint8_t>> sample_dimensions(const OperatorGraph& graph);

/// The graph over 1/`parts` of the samples: shapes, sizes, work, and what is kept. Requires a divisor of the samples.
/// O(graph).
OperatorGraph over_part_of_samples(const OperatorGraph& graph, std::uint64_t parts);

/// Samples of the data of a graph; 0 without data.
std::uint64_t samples_of(const OperatorGraph& graph);

/// Divides units by the largest remainder: device i has units · shares[i], rounded down, and one more where most was
/// rounded off. The first of equal remainders comes first. Shares sum to 1. A device may have none.
std::vector<std::uint64_t> divided(std::uint64_t units, const std::vector<double>& shares);

/// What each device of a group has of the tensors and operators of a graph.
class Pieces {
 public:
  /// `shares`: of each device; 0 or more, and 1 in all. Keeps a reference to the graph.
  Pieces(const OperatorGraph& graph, std::vector<double> shares);

  const std::vector<double>& shares() const { return shares_; }
  std::size_t devices() const { return shares_.size(); }

  /// The part of a tensor in a form on a device: of Gather(i) its units of dimension i over all, otherwise 1.
  double part(std::size_t tensor, Form form, std::size_t device) const;
  /// Bytes of that part.
  Bytes size(std::size_t tensor, Form form, std::size_t device) const;
  /// Bytes of a slice of a tensor that a device here and one of another group both have, where that divides the same
  /// graph. Slices lie in the order of the devices.
  Bytes overlap(std::size_t tensor, Form form, std::size_t device, const Pieces& other, std::size_t of_other) const;
  /// The part of an operator's work that a device does by a signature: that of a slice among its inputs and outputs,
  /// or all of it if there is none.
  double part(const Operator& node, const Signature& signature, std::size_t device) const;

 private:
  const OperatorGraph* graph_;
  std::vector<double> shares_;
  std::vector<std::vector<std::uint64_t>> units_;
  std::map<std::uint64_t, std::vector<std::uint64_t>> divided_;  // over the devices, by the number of units
};

}  // namespace isobar::spmd
