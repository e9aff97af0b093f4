#include "exec/rank_executor.hpp"

#include "core/errors.hpp"
#include "exec/batch.hpp"

#include <fmt/format.h>

#include <torch/torch.h>

#include <time.h>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

/// Processor time of this thread.
double thread_seconds()
{
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

void RankExecutor::Shelf::put(std::uint64_t microbatch, Message message)
{
  const std::lock_guard lock(mutex_);
  messages_[microbatch] = std::move(message);
}

Message RankExecutor::Shelf::take(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  auto found = messages_.extract(microbatch);
  ensure(!found.empty(), "an instruction finds what it waited for");
  return std::move(found.mapped());
}

RankExecutor::RankExecutor(const Workload& workload, const Plan& plan, std::size_t rank, const RankOptions& options)
    : workload_(workload),
      options_(options),
      stages_(plan.stages.size()),
      rank_(rank),
      has_data_server_(plan.data_server.has_value()),
      meter_(rank < plan.stages.size() ? fmt::format("rank {} ({})", rank, shown(plan.stages[rank].device()))
                                       : fmt::format("rank {} (data server)", rank),
             options.memory_cap)
{
  meter_cpu_memory();
  const MeteredThread metered(meter_);
  if (rank_ == stages_) return;
  const Stage& stage = plan.stages[rank_];
  StageOptions stage_options;
  stage_options.first_layer = stage.first_layer;
  stage_options.last_layer = stage.last_layer;
  stage_options.recomputed = plan.recompute;
  stage_options.microbatches = plan.goal.microbatches;
  stage_options.seed = options.seed;
  stage_options.device = options.device;
  model_ = std::make_unique<StageModel>(workload, stage_options);
}

void RankExecutor::run(std::uint64_t step, const Instruction& instruction)
{
  const MeteredThread metered(meter_);
  switch (instruction.lane) {
    case Lane::Compute:
      compute(step, instruction);
      return;
    case Lane::SendActivation:
      transport_->send(instruction, rank_ == stages_ ? micro_batch_data(step, instruction.microbatch)
                                                     : activations_to_send_.take(instruction.microbatch));
      return;
    case Lane::SendGradient:
      transport_->send(instruction, gradients_to_send_.take(instruction.microbatch));
      return;
    case Lane::ReceiveActivation:
      received_activations_.put(instruction.microbatch, transport_->receive(instruction));
      return;
    case Lane::ReceiveGradient:
      received_gradients_.put(instruction.microbatch, transport_->receive(instruction));
      return;
  }
}

void RankExecutor::compute(std::uint64_t step, const Instruction& instruction)
{
  const std::uint64_t microbatch = instruction.microbatch;
  const bool is_first = rank_ == 0;
  const bool is_last = rank_ + 1 == stages_;
  const Seconds begin = steady_time();
  const double worked_before = thread_seconds();
  switch (instruction.opcode) {
    case Opcode::Forward: {
      Message outputs = model_->forward(step, microbatch, stage_inputs(step, microbatch));
      if (!is_last) activations_to_send_.put(microbatch, std::move(outputs));
      break;
    }
    case Opcode::Backward: {
      Message gradients = model_->backward(microbatch, is_last ? Message{} : received_gradients_.take(microbatch));
      if (!is_first) gradients_to_send_.put(microbatch, std::move(gradients));
      break;
    }
    case Opcode::AllReduce: {
      const GradientFacts own = model_->gradient_facts();
      std::array<double, 2> sums = {own.sum_of_squares, own.not_finite};
      transport_->all_reduce_sum(sums);
      agreed_ = {sums[0], sums[1]};
      return;
    }
    case Opcode::Update:
      if (stages_ == 1 && stages_agree(workload_)) agreed_ = model_->gradient_facts();
      model_->update(agreed_);
      break;
    case Opcode::Send:
    case Opcode::Recv:
      throw std::logic_error("a transfer on the compute lane");
  }
  // A slower device is one that is done later: the rest of its time is slept away. What the thread has worked counts,
  // not what it has waited for the processor, so that more ranks than processors stretch alike.
  if (options_.slowdown > 1) {
    const double end = begin.value + options_.slowdown * (thread_seconds() - worked_before);
    std::this_thread::sleep_for(std::chrono::duration<double>(end - steady_time().value));
  }
}

Message RankExecutor::stage_inputs(std::uint64_t step, std::uint64_t microbatch)
{
  if (rank_ == 0 && !has_data_server_) return micro_batch_data(step, microbatch);
  return received_activations_.take(microbatch);
}

Message RankExecutor::micro_batch_data(std::uint64_t step, std::uint64_t microbatch) const
{
  Message message;
  message.tensors = synthetic_inputs(workload_, {options_.seed, step, microbatch}, options_.device);
  message.differentiable.assign(message.tensors.size(), false);
  return message;
}

}  // namespace isobar::exec
