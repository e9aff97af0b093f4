#pragma once

#include "core/spmd/form.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/reform.hpp"
#include "core/spmd/signature.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::spmd {

/// How devices divide the operators of a graph, without their shares.
///
/// Operators stay in their order. A part is a run of them; reforms stand before parts. A tensor has the form in which
/// its operator makes it, and at most one other one: it is reformed before the first part that reads it in that form.
///
/// Parts may be in groups of devices, through which a batch passes one after another. A tensor that the next group
/// reads is a slice where it is made, and comes there as the same slice of that group's shares; it may be reformed in
/// either group, or in both. Data are made in each group, and a parameter is in the group that reads it.
struct Division {
  std::vector<std::size_t> parts;         ///< the first operator of each part, ascending; that of the first part is 0
  std::vector<Signature> signatures;      ///< of each operator
  std::vector<std::size_t> groups = {0};  ///< the first part of each group, ascending; that of the first group is 0

  /// The part that an operator is in. O(log parts).
  std::size_t part_of(std::size_t node) const;
  /// The operator after the last one of a part.
  std::size_t end_of(std::size_t part) const { return part + 1 < parts.size() ? parts[part + 1] : signatures.size(); }
  /// The group that a part is in. O(log groups).
  std::size_t group_of(std::size_t part) const;
  /// The part after the last one of a group.
  std::size_t end_of_group(std::size_t group) const
  {
    return group + 1 < groups.size() ? groups[group + 1] : parts.size();
  }
};

/// A reform of a tensor before a part.
struct PlacedReform {
  std::size_t tensor = 0;
  std::size_t part = 0;
  std::size_t made_in = 0;  ///< the part of the operator that makes the tensor
  Form from, to;
  ReformKind forward{};
  ReformKind backward{};      ///< of the gradient; says nothing of a tensor without one
  bool is_parameter = false;  ///< happens once a step, others for each micro-batch
};

/// The reforms of a division, by part; of each part those of parameters first, then in the order of tensors. A group
/// has at most one of a tensor.
/// @throws std::logic_error for a division with faults.
std::vector<PlacedReform> reforms_of(const OperatorGraph& graph, const Division& division, Rules rules);

/// What is wrong with a division: signatures that an operator does not have, tensors that no reform brings into the
/// form that an operator reads, in time, or that would need two, tensors that cannot pass between groups, and groups
/// between which none passes. Each line names the operator. Parameters and data exist before the first part.
std::vector<std::string> faults_of(const OperatorGraph& graph, const Division& division, Rules rules);

/// "gather0 full full -> gather0".
std::string text_of(const Signature& signature);
/// Parses what `text_of` writes; none for other text.
std::optional<Signature> signature_from_text(std::string_view text);
/// Whether a text is meant as a signature: it has an arrow.
bool is_signature_text(std::string_view text);

}  // namespace isobar::spmd
