#include "exec/control/rank_turn.hpp"

#include "core/program/gathered_updates.hpp"

namespace isobar::exec {

namespace {

/// The position of the computation that ends a turn: the last one of a step that is no Update.
std::uint64_t end_of_turn(const Program& program, std::size_t rank)
{
  const std::uint64_t length = program.length(rank, compute_lane);
  for (std::uint64_t position = length; position > 0; --position) {
    if (program.at(rank, compute_lane, position - 1).opcode != Opcode::Update) return position - 1;
  }
  return length == 0 ? 0 : length - 1;
}

}  // namespace

std::uint64_t collectives_of_turn(const Program& program, std::size_t rank)
{
  std::uint64_t count = 0;
  const auto lanes = static_cast<LaneId>(program.lanes(rank).size());
  for (LaneId lane = 0; lane < lanes; ++lane) {
    const std::uint64_t length = program.length(rank, lane);
    if (length > 0 && is_collective(program.at(rank, lane, 0).opcode)) count += length;
  }
  return count;
}

Event TurnEvents::last(std::size_t device)
{
  const std::lock_guard lock(mutex_);
  return ends_.at(device);
}

void TurnEvents::end_turn(std::size_t device, const Event& end)
{
  const std::lock_guard lock(mutex_);
  ends_.at(device) = end;
}

RankTurn::RankTurn(const JobTurns& job, const Program& program, std::size_t rank, std::uint64_t first_step)
    : job_(job),
      turns_(*job.turns),
      device_(job.devices.at(rank)),
      first_step_(first_step),
      updates_in_turns_(!gathers_updates(program, rank)),
      last_of_turn_(end_of_turn(program, rank))
{
}

/// Whether an instruction computes on the device in a turn.
bool RankTurn::is_in_turn(const Instruction& instruction) const
{
  return is_on_device(instruction) && (updates_in_turns_ || instruction.opcode != Opcode::Update);
}

void RankTurn::await(std::uint64_t step, std::uint64_t position, const Instruction& instruction,
                     const TransferWaits& waits, const Numbered& numbered, const std::function<void()>& check)
{
  if (is_collective(instruction.opcode)) {
    waits.turn(step, [&](const Deadline& deadline) {
      turns_.await_links(job_.job, device_, step - first_step_, deadline, check);
    });
  } else if (is_in_turn(instruction) && !holds_) {
    const std::uint64_t turn = step - first_step_ + (position > last_of_turn_ ? 1 : 0);
    if (const auto number = turns_.ask(job_.job, device_)) numbered(turn, *number);
    waits.turn(step, [&](const Deadline& deadline) { turns_.await_device(job_.job, device_, deadline, check); });
    holds_ = true;
  }
}

void RankTurn::follow(const Instruction& instruction, Stream& stream)
{
  if (!is_in_turn(instruction)) return;
  if (job_.events != nullptr && stream.is_on_gpu()) stream.await(job_.events->last(device_));
}

void RankTurn::done(std::uint64_t step, std::uint64_t position, const Instruction& instruction, Stream& stream)
{
  if (is_collective(instruction.opcode)) {
    turns_.collective_done(job_.job, device_, step - first_step_);
  } else if (is_in_turn(instruction)) {
    turns_.works();
    const bool ends_step = position == last_of_turn_;
    if (!ends_step && turns_.hand_over() == HandOver::Step) return;
    if (stream.is_on_gpu()) {
      const Event end = stream.record();
      job_.events != nullptr ? job_.events->end_turn(device_, end) : end.wait();
    }
    turns_.give_back(job_.job, device_, ends_step);
    holds_ = false;
  }
}

}  // namespace isobar::exec
