#pragma once

#include "core/spmd/operator_graph.hpp"

#include <cstdint>
#include <vector>

namespace isobar::exec {

/// A block of a tensor of an operator graph: `size` indices from `begin` in each dimension.
struct TensorSlice {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> size;

  static TensorSlice whole(const spmd::Tensor& tensor)
  {
    return {std::vector<std::int64_t>(tensor.shape.size()), {tensor.shape.begin(), tensor.shape.end()}};
  }
};

}  // namespace isobar::exec
