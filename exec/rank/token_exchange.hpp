#pragma once

#include "core/program/program.hpp"
#include "core/program/shard_role.hpp"
#include "exec/device/message.hpp"
#include "exec/device/tensors.hpp"
#include "exec/stage/expert_passes.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace isobar::exec {

/// What one rank exchanges with the devices of a group that divides experts: of each micro-batch as many rows to each
/// of them as its router says, and as many back. Lanes may call it at the same time.
class TokenExchange {
 public:
  /// Sends a tensor to each end of a channel, in its order, and receives one from each.
  using Exchange = std::function<void(const Tensors& outgoing, const Tensors& incoming)>;

  explicit TokenExchange(std::size_t rank) : rank_(rank) {}

  /// Brings tokens to the devices that have their experts, and what these make of them back; of a backward pass
  /// likewise the gradients. Routes before that, and adds up after it, what the layer computes without its experts.
  /// `message`: of the neighbouring stage, or, after a pass, what this rank's experts have made. `keeps`: what a
  /// backward pass needs.
  Message run(std::uint64_t step, const Instruction& instruction, ShardRole role, const std::vector<End>& ends,
              ExpertPasses& experts, const Message& message, bool keeps, const Exchange& exchange);

  /// What a device computes of such a layer for rows that have come. The gradients of its weights are part of the first
  /// of two halves of a backward pass.
  Message computed(const Instruction& instruction, ExpertPasses& experts, const Message& inputs);

 private:
  /// How many rows of a micro-batch go to and come from each device of the group, in its order.
  struct Counts {
    std::vector<std::int64_t> leaving;
    std::vector<std::int64_t> coming;
    std::vector<std::int64_t> by_expert;  // those that come: of each device and each own expert
  };

  at::Tensor exchanged(const at::Tensor& rows, const std::vector<std::int64_t>& leaving,
                       const std::vector<std::int64_t>& coming, const std::vector<End>& ends,
                       const Exchange& exchange) const;
  Counts counts_of(const Instruction& instruction);

  std::size_t rank_;
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Counts> counts_;  // by stage and micro-batch, while on their way
};

}  // namespace isobar::exec
