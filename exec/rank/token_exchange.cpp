#include "exec/rank/token_exchange.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace isobar::exec {

namespace {

std::vector<std::int64_t> values_in(const at::Tensor& tensor)
{
  const auto* const begin = tensor.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(begin, begin + tensor.numel());
}

}  // namespace

/// Sends rows to each device, in its order, of which this one keeps its own.
/// @returns those that come, from one after another
at::Tensor TokenExchange::exchanged(const at::Tensor& rows, const std::vector<std::int64_t>& leaving,
                                    const std::vector<std::int64_t>& coming, const std::vector<End>& ends,
                                    const Exchange& exchange) const
{
  const at::NoGradGuard no_graph;
  Tensors outgoing = rows.split_with_sizes(leaving, 0);
  Tensors incoming;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    auto shape = rows.sizes().vec();
    shape.front() = coming[i];
    incoming.push_back(ends[i].rank == rank_ ? outgoing[i] : at::empty(shape, rows.options()));
    outgoing[i] = outgoing[i].contiguous();
  }
  exchange(outgoing, incoming);
  return at::cat(incoming);
}

TokenExchange::Counts TokenExchange::counts_of(const Instruction& instruction)
{
  const std::lock_guard lock(mutex_);
  return counts_.at({instruction.stage, instruction.microbatch});
}

Message TokenExchange::run(std::uint64_t step, const Instruction& instruction, ShardRole role,
                           const std::vector<End>& ends, ExpertPasses& experts, const Message& message, bool keeps,
                           const Exchange& exchange)
{
  const std::uint64_t microbatch = instruction.microbatch;
  Message made;
  if (role == ShardRole::DispatchTokens) {
    const auto [rows, rows_of_experts] = experts.begin_forward(step, microbatch, message, keeps);
    const auto devices = static_cast<std::int64_t>(ends.size());
    const std::int64_t own = rows_of_experts.numel() / devices;
    const std::vector<std::int64_t> each(ends.size(), own);
    const at::Tensor come = exchanged(rows_of_experts, each, each, ends, exchange).view({devices, own});
    const Counts counts = {values_in(rows_of_experts.view({devices, own}).sum(1)), values_in(come.sum(1)),
                           values_in(come)};
    made.tensors = {exchanged(rows, counts.leaving, counts.coming, ends, exchange)};
    const std::lock_guard lock(mutex_);
    counts_[{instruction.stage, microbatch}] = counts;
    return made;
  }
  const Counts counts = counts_of(instruction);
  if (role == ShardRole::DispatchGradients) {
    made.tensors = {
        exchanged(experts.begin_backward(microbatch, message), counts.leaving, counts.coming, ends, exchange)};
    return made;
  }
  const at::Tensor returned = exchanged(message.tensors.at(0), counts.coming, counts.leaving, ends, exchange);
  const bool is_forward = role == ShardRole::CombineOutputs;
  if (!is_forward || !keeps) {
    const std::lock_guard lock(mutex_);
    counts_.erase({instruction.stage, microbatch});
  }
  return is_forward ? experts.end_forward(microbatch, returned) : experts.end_backward(microbatch, returned);
}

Message TokenExchange::computed(const Instruction& instruction, ExpertPasses& experts, const Message& inputs)
{
  Message message;
  if (instruction.opcode == Opcode::BackwardWeight) return message;
  const at::Tensor& rows = inputs.tensors.at(0);
  if (instruction.opcode != Opcode::Forward) {
    message.tensors = {experts.compute_backward(instruction.microbatch, rows)};
    return message;
  }
  const Counts arrived = counts_of(instruction);
  const at::Tensor counts =
      at::tensor(arrived.by_expert, at::kLong).view({static_cast<std::int64_t>(arrived.coming.size()), -1});
  message.tensors = {experts.compute(instruction.microbatch, rows, counts)};
  return message;
}

}  // namespace isobar::exec
