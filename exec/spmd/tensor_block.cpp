#include "exec/spmd/tensor_block.hpp"

#include "core/spmd/pieces.hpp"

#include <numeric>
#include <utility>

namespace isobar::exec {

TensorBlocks::TensorBlocks(const spmd::OperatorGraph& graph, std::vector<double> shares)
    : graph_(&graph), shares_(std::move(shares)), units_(spmd::units_of_dimensions(graph))
{
}

TensorBlock TensorBlocks::of(std::size_t tensor, spmd::Form form, std::size_t device) const
{
  TensorBlock block = TensorBlock::whole(graph_->tensors[tensor]);
  if (form.kind != spmd::Form::Kind::Gather) return block;
  const std::uint64_t units = units_[tensor].at(form.dimension);
  const auto taken = spmd::divided(units, shares_);
  const auto before =
      std::accumulate(taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(device), std::uint64_t{0});
  auto& size = block.size[form.dimension];
  const auto of_unit = static_cast<std::uint64_t>(size) / units;
  block.begin[form.dimension] = static_cast<std::int64_t>(before * of_unit);
  size = static_cast<std::int64_t>(taken[device] * of_unit);
  return block;
}

}  // namespace isobar::exec
