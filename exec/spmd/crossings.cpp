#include "exec/spmd/crossings.hpp"

#include "core/errors.hpp"
#include "exec/spmd/tensor_block.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace isobar::exec {

Overlaps overlaps_of(const OperatorPlan& plan, std::size_t rank, bool is_next, bool only_with_gradients)
{
  const auto [own, replica, position] = plan.place_of(rank);
  if (is_next ? own + 1 == plan.groups.size() : own == 0) return {};
  const std::size_t other = is_next ? own + 1 : own - 1;
  const OperatorGroup& group = plan.groups[other];
  const TensorBlocks own_blocks(plan.graph, plan.groups[own].shares);
  const TensorBlocks other_blocks(plan.graph, group.shares);
  Overlaps overlaps;
  for (const std::size_t tensor : plan.groups[std::min(own, other)].passes) {
    if (only_with_gradients && !plan.graph.has_gradient(tensor)) continue;
    const spmd::Form form = plan.form_of(tensor);
    const std::size_t dimension = form.dimension;
    const TensorBlock slice = own_blocks.of(tensor, form, position);
    for (std::size_t device = 0; device < group.shares.size(); ++device) {
      const TensorBlock theirs = other_blocks.of(tensor, form, device);
      const std::int64_t begin = std::max(slice.begin[dimension], theirs.begin[dimension]);
      const std::int64_t end =
          std::min(slice.begin[dimension] + slice.size[dimension], theirs.begin[dimension] + theirs.size[dimension]);
      if (begin >= end) continue;
      overlaps[group.rank_of(replica, device)].push_back(
          {tensor, static_cast<std::int64_t>(dimension), begin - slice.begin[dimension], end - begin});
    }
  }
  return overlaps;
}

Message LeavingTensors::to(std::size_t reader, std::uint64_t step, std::uint64_t microbatch,
                           const std::function<at::Tensor(std::size_t tensor)>& slice_of, Stream& stream)
{
  const std::lock_guard lock(mutex_);
  auto found = messages_.extract({step, microbatch, reader});
  if (!found.empty()) return std::move(found.mapped());
  std::map<std::size_t, at::Tensor> slices;
  std::map<std::size_t, Message> messages;  // by reader
  for (const auto& [rank, overlaps] : overlaps_) {
    Message& message = messages[rank];
    for (const auto& [tensor, dimension, begin, size] : overlaps) {
      at::Tensor& slice = slices[tensor];
      if (!slice.defined()) slice = slice_of(tensor);
      message.tensors.push_back(slice.narrow(dimension, begin, size).contiguous());
    }
    message.differentiable.assign(overlaps.size(), true);
  }
  for (auto& [rank, message] : messages) {
    message.ready = stream.record();
    if (rank != reader) messages_[{step, microbatch, rank}] = std::move(message);
  }
  return std::move(messages.at(reader));
}

ArrivingTensors::ArrivingTensors(Overlaps overlaps, TensorStore& store) : overlaps_(std::move(overlaps)), store_(store)
{
  for (const auto& [sender, pieces] : overlaps_) {
    for (const auto& piece : pieces) ++senders_[piece.tensor];
  }
}

void ArrivingTensors::receive(std::size_t sender, std::uint64_t step, std::uint64_t microbatch, const Message& message,
                              Stream& stream)
{
  const auto& overlaps = overlaps_.at(sender);
  ensure(message.tensors.size() == overlaps.size(), "a message has a piece of each tensor that its ends share");
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < overlaps.size(); ++i) {
    const auto& [tensor, dimension, begin, size] = overlaps[i];
    ensure(message.tensors[i].size(dimension) == size, "a piece has the size of what its ends share");
    const TensorKey key{step, microbatch, tensor, false};
    auto& pieces = pieces_[key];
    Message& piece = pieces[sender];
    piece.tensors = {message.tensors[i]};
    piece.ready = message.ready;
    if (pieces.size() < senders_.at(tensor)) continue;
    Tensors in_order;  // of the ranks, and so of their slices
    for (const auto& [from, each] : pieces) {
      stream.await(each);
      in_order.push_back(each.tensors.front());
    }
    store_.put(key, in_order.size() == 1 ? in_order.front() : at::cat(in_order, dimension), stream);
    pieces_.erase(key);
  }
}

}  // namespace isobar::exec
