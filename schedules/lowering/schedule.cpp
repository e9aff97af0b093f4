#include "schedules/lowering/schedule.hpp"

#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"
#include "schedules/orders/compute_order.hpp"

#include <vector>

namespace isobar::schedules {

namespace {

/// The layers, work and memory of one stage.
struct StageWork {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Flops forward;
  Flops backward;
  Flops update;
  Bytes resident;
  Bytes activations;  // acquired and released per micro-batch
};

/// A pipeline of stages: the compute lane follows the schedule's order, and the lanes of transfers follow from that.
class PipelineProgram : public Program {
 public:
  PipelineProgram(const Plan& plan, const Workload& workload)
      : order_(order_of(plan)),
        microbatches_(plan.goal.microbatches),
        has_data_server_(plan.data_server.has_value()),
        has_gradient_sync_(needs_gradient_sync(workload) && plan.stages.size() > 1)
  {
    ensure(!plan.stages.empty() && microbatches_ > 0, "a program needs a feasible plan");
    const Cluster nowhere;  // what a stage needs is the same on every device
    const CostModel costs(workload, nowhere);
    const Boundaries boundaries = boundaries_of(workload);
    for (const auto& stage : plan.stages) {
      ensure(stage.devices.size() == 1, "a stage of several devices has no schedule yet");
      StageWork work;
      work.first_layer = stage.first_layer;
      work.last_layer = stage.last_layer;
      for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) {
        const Layer& layer = workload.layers.at(i);
        work.forward += layer.forward;
        work.backward += layer.backward;
        work.update += update_work(workload, layer);
        if (!costs.memory_ignores_schedule()) work.activations += layer.activations;
      }
      work.resident = costs.memory(stage.first_layer, stage.last_layer, 0);
      stages_.push_back(work);
      activation_size_.push_back(boundaries.output.at(stage.first_layer));
      gradient_size_.push_back(boundaries.gradient.at(stage.first_layer));
    }
  }

  std::size_t ranks() const override { return stages_.size() + (has_data_server_ ? 1 : 0); }

  Bytes resident_memory(std::size_t rank) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    return is_stage(rank) ? stages_[rank].resident : Bytes(0);
  }

  std::uint64_t length(std::size_t rank, Lane lane) const override
  {
    ensure(rank < ranks(), "a rank beyond the program's");
    if (!is_stage(rank)) return lane == Lane::SendActivation ? microbatches_ : 0;
    switch (lane) {
      case Lane::Compute:
        return 2 * microbatches_ + (has_gradient_sync_ ? 2 : 1);
      case Lane::SendActivation:
      case Lane::ReceiveGradient:
        return is_last(rank) ? 0 : microbatches_;
      case Lane::SendGradient:
        return is_first(rank) ? 0 : microbatches_;
      case Lane::ReceiveActivation:
        return receives_activations(rank) ? microbatches_ : 0;
    }
    return 0;
  }

  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    ensure(position < length(rank, lane), "a position beyond the end of its lane");
    if (!is_stage(rank)) return input_send(position);
    switch (lane) {
      case Lane::Compute:
        return compute(rank, position);
      case Lane::SendActivation:
        return transfer(rank, Opcode::Send, lane, position, rank + 1, position, activation_size_[rank + 1],
                        after_compute(order_->forward_position(rank, position)));
      case Lane::ReceiveActivation:
        return transfer(rank, Opcode::Recv, lane, position, is_first(rank) ? stages_.size() : rank - 1, position,
                        activation_size_[rank], is_first(rank) ? after_earlier_input(position) : Wait{});
      case Lane::SendGradient: {
        const std::uint64_t microbatch = order_->nth_backward(position);
        return transfer(rank, Opcode::Send, lane, microbatch, rank - 1, position, gradient_size_[rank],
                        after_compute(order_->backward_position(rank, microbatch)));
      }
      case Lane::ReceiveGradient:
        return transfer(rank, Opcode::Recv, lane, order_->nth_backward(position), rank + 1, position,
                        gradient_size_[rank + 1], Wait{});
    }
    throw std::logic_error("a lane that no program has");
  }

 private:
  static std::unique_ptr<ComputeOrder> order_of(const Plan& plan)
  {
    switch (plan.goal.schedule) {
      case Schedule::Sequential:
        return sequential_order();
      case Schedule::GPipe:
        return gpipe_order(plan.goal.microbatches);
      case Schedule::OneForwardOneBackward:
        return one_forward_one_backward_order(plan.stages.size(), plan.goal.microbatches);
    }
    throw std::logic_error("a schedule without a program");
  }

  bool is_stage(std::size_t rank) const { return rank < stages_.size(); }
  bool is_first(std::size_t rank) const { return rank == 0; }
  bool is_last(std::size_t rank) const { return rank + 1 == stages_.size(); }
  bool receives_activations(std::size_t rank) const { return !is_first(rank) || has_data_server_; }

  static Wait after_compute(std::uint64_t position) { return {Lane::Compute, position + 1}; }

  /// The input is double-buffered: one arrives while the previous one is processed.
  Wait after_earlier_input(std::uint64_t microbatch) const
  {
    return microbatch < 2 ? Wait{} : after_compute(order_->forward_position(0, microbatch - 2));
  }

  Instruction stage_instruction(std::size_t rank, Opcode opcode, Lane lane, std::uint64_t microbatch, Wait wait) const
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.lane = lane;
    instruction.stage = static_cast<std::uint32_t>(rank);
    instruction.microbatch = microbatch;
    instruction.first_layer = stages_[rank].first_layer;
    instruction.last_layer = stages_[rank].last_layer;
    instruction.wait = wait;
    return instruction;
  }

  Instruction compute(std::size_t rank, std::uint64_t position) const
  {
    const StageWork& stage = stages_[rank];
    if (position == 2 * microbatches_ && has_gradient_sync_) {
      Instruction gradient_sync = stage_instruction(rank, Opcode::AllReduce, Lane::Compute, 0, Wait{});
      gradient_sync.size = gradient_sync_size;
      gradient_sync.peer = (rank + 1) % stages_.size();
      return gradient_sync;
    }
    if (position >= 2 * microbatches_) {
      Instruction update = stage_instruction(rank, Opcode::Update, Lane::Compute, 0, Wait{});
      update.work = stage.update;
      return update;
    }
    const auto [is_forward, microbatch] = order_->at(rank, position);
    if (is_forward) {
      Instruction forward = stage_instruction(rank, Opcode::Forward, Lane::Compute, microbatch, Wait{});
      if (receives_activations(rank)) forward.wait = {Lane::ReceiveActivation, microbatch + 1};
      forward.work = stage.forward;
      forward.acquires = stage.activations;
      return forward;
    }
    Instruction backward = stage_instruction(rank, Opcode::Backward, Lane::Compute, microbatch, Wait{});
    if (!is_last(rank)) backward.wait = {Lane::ReceiveGradient, order_->nth_backward(microbatch) + 1};
    backward.work = stage.backward;
    backward.releases = stage.activations;
    return backward;
  }

  Instruction transfer(std::size_t rank, Opcode opcode, Lane lane, std::uint64_t microbatch, std::size_t peer,
                       std::uint64_t peer_position, Bytes size, Wait wait) const
  {
    Instruction instruction = stage_instruction(rank, opcode, lane, microbatch, wait);
    instruction.size = size;
    instruction.peer = peer;
    instruction.peer_position = peer_position;
    return instruction;
  }

  /// The data server has no stage; its sends carry the stage and layers that they feed.
  Instruction input_send(std::uint64_t microbatch) const
  {
    return transfer(0, Opcode::Send, Lane::SendActivation, microbatch, 0, microbatch, activation_size_.front(), Wait{});
  }

  std::vector<StageWork> stages_;
  std::vector<Bytes> activation_size_;  // over the cut before each stage
  std::vector<Bytes> gradient_size_;    // back over the same cut
  std::unique_ptr<ComputeOrder> order_;
  std::uint64_t microbatches_;
  bool has_data_server_;
  bool has_gradient_sync_;
};

}  // namespace

std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload)
{
  return std::make_unique<PipelineProgram>(plan, workload);
}

}  // namespace isobar::schedules
