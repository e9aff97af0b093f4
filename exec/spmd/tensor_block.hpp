#pragma once

#include "core/spmd/form.hpp"
#include "core/spmd/operator_graph.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::exec {

/// A block of a tensor of an operator graph: `size` indices from `begin` in each dimension.
struct TensorBlock {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> size;

  static TensorBlock whole(const spmd::Tensor& tensor)
  {
    return {std::vector<std::int64_t>(tensor.shape.size()), {tensor.shape.begin(), tensor.shape.end()}};
  }
};

/// The blocks that devices have of the tensors of a graph.
class TensorBlocks {
 public:
  /// `shares`: of each device, as in spmd::Pieces, whose sizes the blocks have. Keeps a reference to the graph.
  TensorBlocks(const spmd::OperatorGraph& graph, std::vector<double> shares);

  std::size_t devices() const { return shares_.size(); }
  /// What a device has of a tensor in a form: of Gather its slice, which may be empty, otherwise all.
  TensorBlock of(std::size_t tensor, spmd::Form form, std::size_t device) const;

 private:
  const spmd::OperatorGraph* graph_;
  std::vector<double> shares_;
  std::vector<std::vector<std::uint64_t>> units_;  // by tensor and dimension
};

}  // namespace isobar::exec
