#include "exec/control/rank_turn.hpp"

#include <algorithm>
#include <limits>

namespace isobar::exec {

namespace {

constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();

/// The position of the computation that ends a turn: the last one of a step that is no Update.
std::uint64_t end_of_turn(const Program& program, std::size_t rank)
{
  const std::uint64_t length = program.length(rank, compute_lane);
  for (std::uint64_t position = length; position > 0; --position) {
    if (program.at(rank, compute_lane, position - 1).opcode != Opcode::Update) return position - 1;
  }
  return length == 0 ? 0 : length - 1;
}

/// By lane, the position of the first collective that follows an Update which opens the next turn; all later ones of
/// the lane do.
std::vector<std::uint64_t> first_after_updates(const Program& program, std::size_t rank)
{
  const std::uint64_t end = end_of_turn(program, rank);
  const auto is_in_next_turn = [end](const Wait& wait) {
    return wait.lane == compute_lane && wait.periods_back == 0 && wait.count > end + 1;
  };
  std::vector<std::uint64_t> first(program.lanes(rank).size(), none);
  for (LaneId lane = 0; lane < first.size(); ++lane) {
    const std::uint64_t length = program.length(rank, lane);
    if (length == 0 || !is_collective(program.at(rank, lane, 0).opcode)) continue;
    for (std::uint64_t position = 0; position < length && first[lane] == none; ++position) {
      const Waits waits = program.at(rank, lane, position).waits;
      if (std::any_of(waits.begin(), waits.end(), is_in_next_turn)) first[lane] = position;
    }
  }
  return first;
}

}  // namespace

CollectivesOfTurn collectives_of_turn(const Program& program, std::size_t rank)
{
  const auto first = first_after_updates(program, rank);
  CollectivesOfTurn count;
  for (LaneId lane = 0; lane < first.size(); ++lane) {
    const std::uint64_t length = program.length(rank, lane);
    if (length == 0 || !is_collective(program.at(rank, lane, 0).opcode)) continue;
    const std::uint64_t before = std::min(first[lane], length);
    count.before_updates += before;
    count.after_updates += length - before;
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
      after_updates_(first_after_updates(program, rank)),
      last_of_turn_(end_of_turn(program, rank))
{
}

std::uint64_t RankTurn::turn_of(std::uint64_t step, std::uint64_t position, const Instruction& instruction) const
{
  return step - first_step_ + (position >= after_updates_.at(instruction.lane) ? 1 : 0);
}

void RankTurn::await(std::uint64_t step, std::uint64_t position, const Instruction& instruction,
                     const TransferWaits& waits, const Numbered& numbered, const std::function<void()>& check)
{
  if (is_collective(instruction.opcode)) {
    waits.turn(step, [&](const Deadline& deadline) {
      turns_.await_links(job_.job, device_, turn_of(step, position, instruction), deadline, check);
    });
  } else if (is_on_device(instruction) && !holds_) {
    const std::uint64_t turn = step - first_step_ + (position > last_of_turn_ ? 1 : 0);
    if (const auto number = turns_.ask(job_.job, device_)) numbered(turn, *number);
    waits.turn(step, [&](const Deadline& deadline) { turns_.await_device(job_.job, device_, deadline, check); });
    holds_ = true;
  }
}

void RankTurn::follow(Stream& stream)
{
  if (job_.events != nullptr && stream.is_on_gpu()) stream.await(job_.events->last(device_));
}

void RankTurn::done(std::uint64_t step, std::uint64_t position, const Instruction& instruction, Stream& stream)
{
  if (is_collective(instruction.opcode)) {
    turns_.collective_done(job_.job, device_, turn_of(step, position, instruction));
  } else if (is_on_device(instruction)) {
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
