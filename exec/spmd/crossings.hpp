#pragma once

#include "core/plan/operator_plan.hpp"
#include "exec/device/message.hpp"
#include "exec/device/stream.hpp"
#include "exec/spmd/tensor_store.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

/// Tensors between groups of a pipeline. Internal to exec/spmd.
namespace isobar::exec {

/// What the slices of two ranks have in common of a tensor that one of them sends to the other.
struct Overlap {
  std::size_t tensor = 0;
  std::int64_t dimension = 0;
  std::int64_t begin = 0;  ///< in the slice of this rank
  std::int64_t size = 0;   ///< 1 or more
};

/// The parts of a rank's slices that it exchanges with each rank of a neighbouring group, in the order of the tensors.
/// Ranks with which it exchanges nothing are left out.
using Overlaps = std::map<std::size_t, std::vector<Overlap>>;

/// Those of `rank` with the ranks of the next group, or with `is_next` false of the one before; none where there is no
/// such group. `only_with_gradients`: of tensors that have one, whose gradients are divided alike.
Overlaps overlaps_of(const OperatorPlan& plan, std::size_t rank, bool is_next, bool only_with_gradients);

/// Messages of a micro-batch with the pieces of a rank's slices, one to each of several ranks. Thread-safe.
class LeavingTensors {
 public:
  explicit LeavingTensors(Overlaps overlaps) : overlaps_(std::move(overlaps)) {}

  /// The message to `reader`, to be sent once. The first call for a micro-batch takes each slice from `slice_of`, on
  /// the stream.
  Message to(std::size_t reader, std::uint64_t step, std::uint64_t microbatch,
             const std::function<at::Tensor(std::size_t tensor)>& slice_of, Stream& stream);

 private:
  using Address = std::tuple<std::uint64_t, std::uint64_t, std::size_t>;  // step, micro-batch and reader

  const Overlaps overlaps_;
  std::mutex mutex_;
  std::map<Address, Message> messages_;
};

/// Slices of a rank, put together from the pieces in the messages of several ranks. Thread-safe.
class ArrivingTensors {
 public:
  /// A slice goes to `store`, which must outlive this, once all its pieces have arrived.
  ArrivingTensors(Overlaps overlaps, TensorStore& store);

  void receive(std::size_t sender, std::uint64_t step, std::uint64_t microbatch, const Message& message,
               Stream& stream);

 private:
  const Overlaps overlaps_;
  TensorStore& store_;
  std::map<std::size_t, std::size_t> senders_;  // of each tensor
  std::mutex mutex_;
  std::map<TensorKey, std::map<std::size_t, Message>> pieces_;  // by sender
};

}  // namespace isobar::exec
