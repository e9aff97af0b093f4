#include "schedules/evaluation.hpp"

#include "core/errors.hpp"
#include "schedules/lowering/schedule.hpp"

#include <utility>

namespace isobar::schedules {

namespace {

/// The forwards and their transfers of a training program whose order begins with all forwards (gpipe).
class EvaluationProgram : public Program {
 public:
  EvaluationProgram(std::unique_ptr<Program> training, std::uint64_t microbatches)
      : training_(std::move(training)), microbatches_(microbatches)
  {
  }

  std::size_t ranks() const override { return training_->ranks(); }
  Bytes resident_memory(std::size_t rank) const override { return training_->resident_memory(rank); }

  std::uint64_t length(std::size_t rank, Lane lane) const override
  {
    switch (lane) {
      case Lane::Compute:
        return training_->length(rank, lane) == 0 ? 0 : microbatches_;  // the data server computes nothing
      case Lane::SendActivation:
      case Lane::ReceiveActivation:
        return training_->length(rank, lane);
      case Lane::SendGradient:
      case Lane::ReceiveGradient:
        return 0;
    }
    return 0;
  }

  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    ensure(position < length(rank, lane), "a position beyond the end of its lane");
    Instruction instruction = training_->at(rank, lane, position);
    if (instruction.opcode == Opcode::Forward) instruction.acquires = Bytes(0);
    return instruction;
  }

 private:
  std::unique_ptr<Program> training_;
  std::uint64_t microbatches_;
};

}  // namespace

std::unique_ptr<Program> make_evaluation_program(const Plan& plan, const Workload& workload)
{
  Plan forwards_first = plan;
  forwards_first.goal.schedule = Schedule::GPipe;
  return std::make_unique<EvaluationProgram>(make_program(forwards_first, workload), plan.goal.microbatches);
}

}  // namespace isobar::schedules
