#include "core/program/walk.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar {

namespace {

constexpr std::size_t most_shown_lanes = 8;

}  // namespace

std::string place_text(std::size_t rank, const Lane& lane, std::uint64_t position)
{
  return fmt::format("rank {}, lane {}, position {}", rank, shown(lane.name), position);
}

std::uint64_t instructions_of(const Program& program)
{
  constexpr auto largest = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (std::size_t lane = 0; lane < program.lanes(rank).size(); ++lane) {
      const std::uint64_t length = program.length(rank, static_cast<LaneId>(lane));
      sum = length > largest - sum ? largest : sum + length;
    }
  }
  return sum;
}

ProgramWalk::ProgramWalk(const Program& program) : program_(program)
{
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    first_lane_.push_back(lanes_.size());
    const auto& lanes = program.lanes(rank);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      LaneState lane;
      lane.turn.at = {rank, static_cast<LaneId>(i)};
      lane.turn.number = lanes_.size();
      lane.length = program.length(rank, lane.turn.at.lane);
      lane.channel = lanes[i].channel;
      lane.keeps_step = lanes[i].keeps_step;
      lane.steps = program.steps(rank);
      lane.step_end =
          lane.keeps_step && lane.length > 0 ? program.end_of_step(rank, lane.turn.at.lane, 0) : lane.length;
      lanes_.push_back(std::move(lane));
    }
  }
  first_lane_.push_back(lanes_.size());

  constexpr const char* no_end = "a lane and a channel that do not name each other";
  std::size_t ends = 0;
  for (const auto& channel : program.channels()) {
    Meeting meeting;
    for (const End& end : channel.ends) {
      ensure(end.rank < program.ranks() && number_of(end) < first_lane_[end.rank + 1], no_end);
      const LaneState& lane = lanes_[number_of(end)];
      ensure(lane.channel == meetings_.size(), no_end);
      ensure(std::find(meeting.lanes.begin(), meeting.lanes.end(), lane.turn.number) == meeting.lanes.end(), no_end);
      meeting.lanes.push_back(lane.turn.number);
      meeting.turns.push_back(&lane.turn);
    }
    ends += meeting.lanes.size();
    meetings_.push_back(std::move(meeting));
  }
  const auto with_channel = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane.channel; });
  ensure(ends == static_cast<std::size_t>(with_channel), no_end);
}

std::optional<std::string> ProgramWalk::run(std::uint64_t periods, WalkVisitor& visitor)
{
  periods_ = periods;
  visitor_ = &visitor;
  if (periods == 0) return std::nullopt;
  for (std::size_t i = lanes_.size(); i-- > 0;) awake_.push_back(i);
  while (!awake_.empty() || deferred_ > 0) {
    if (awake_.empty()) {
      --deferred_;
      const Deferred next = visitor.next_deferred();
      if (next.is_meeting) {
        end_meeting(meetings_[next.number]);
        continue;
      }
      execute(lanes_[next.number]);
      awake_.push_back(next.number);
    }
    LaneState& lane = lanes_[awake_.back()];
    awake_.pop_back();
    while (advance(lane)) {
    }
  }
  const bool is_done = std::all_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return has_ended(lane); });
  if (is_done) return std::nullopt;
  return deadlock();
}

bool ProgramWalk::has_ended(const LaneState& lane) const
{
  return lane.length == 0 || (lane.turn.position == lane.length && lane.turn.period + 1 == periods_);
}

/// Visits the lane's turn; false if the lane has ended or has to wait.
bool ProgramWalk::advance(LaneState& lane)
{
  if (has_ended(lane) || (!lane.has_turn && !take_turn(lane))) return false;
  const Turn& turn = lane.turn;
  for (const Wait& wait : turn.instruction.waits) {
    if (wait.periods_back > turn.period) continue;
    const std::size_t other = first_lane_[turn.at.rank] + wait.lane;
    ensure(other < first_lane_[turn.at.rank + 1], "a wait for a lane that the rank does not have");
    const std::uint64_t before = (turn.period - wait.periods_back) * lanes_[other].length;
    if (!reaches(lane, lanes_[other], before + wait.count)) return false;
  }
  if (lane.channel) return meet(lane);
  if (visitor_->defers(turn)) {
    ++deferred_;
    return false;
  }
  execute(lane);
  return true;
}

void ProgramWalk::execute(LaneState& lane)
{
  visitor_->execute(lane.turn);
  complete(lane);
}

/// The instructions of a lane in the first `step` steps of all periods.
std::uint64_t ProgramWalk::instructions_before(const LaneState& lane, std::uint64_t step) const
{
  const std::uint64_t of_period = step % lane.steps;
  const std::uint64_t before = step / lane.steps * lane.length;
  return of_period == 0 ? before : before + program_.end_of_step(lane.turn.at.rank, lane.turn.at.lane, of_period - 1);
}

/// Whether all lanes that keep step with this one have ended the step before the one that it ends.
bool ProgramWalk::may_enter_step(LaneState& lane)
{
  const std::size_t rank = lane.turn.at.rank;
  for (std::size_t number = first_lane_[rank]; number < first_lane_[rank + 1]; ++number) {
    LaneState& other = lanes_[number];
    if (other.length == 0 || !other.keeps_step) continue;
    if (!reaches(lane, other, instructions_before(other, lane.turn.step))) return false;
  }
  return true;
}

/// Takes the lane's next instruction; false if it may not enter the next step or period yet.
bool ProgramWalk::take_turn(LaneState& lane)
{
  Turn& turn = lane.turn;
  const bool enters_step = lane.steps > 1 && lane.keeps_step && turn.position == lane.step_end;
  if (enters_step && !may_enter_step(lane)) return false;
  if (turn.position == lane.length) {
    for (std::size_t other = first_lane_[turn.at.rank]; other < first_lane_[turn.at.rank + 1]; ++other) {
      if (!reaches(lane, lanes_[other], turn.period * lanes_[other].length)) return false;
    }
    ++turn.period;
    turn.position = 0;
    visitor_->enter_period(turn);
  }
  if (enters_step) {
    ++turn.step;
    lane.step_end = program_.end_of_step(turn.at.rank, turn.at.lane, turn.step % lane.steps);
    visitor_->enter_step(turn);
  }
  turn.instruction = program_.at(turn.at.rank, turn.at.lane, turn.position);
  lane.has_turn = true;
  return true;
}

/// Whether `other` has completed that number of instructions. If not, `lane` is tried again when it has.
bool ProgramWalk::reaches(LaneState& lane, LaneState& other, std::uint64_t completed)
{
  if (other.completed >= completed) return true;
  lane.blocked_by = other.turn.number;
  other.waiters.push_back({lane.turn.number, completed});
  other.wakes_at = std::min(other.wakes_at, completed);
  return false;
}

/// Brings the lane's turn to its channel; false if another end is missing there.
bool ProgramWalk::meet(LaneState& lane)
{
  Meeting& meeting = meetings_[*lane.channel];
  lane.is_present = true;
  if (++meeting.present < meeting.lanes.size()) return false;
  meeting.present = 0;
  const bool is_over = visitor_->meet(*lane.channel, meeting.turns);
  meeting.has_left = is_over || is_transfer(lane.turn.instruction.opcode);
  if (!is_over) ++deferred_;
  if (!meeting.has_left) return false;
  for (const std::size_t number : meeting.lanes) {
    lanes_[number].is_present = false;
    proceed(lanes_[number]);
    if (is_over) count(lanes_[number]);
    if (number != lane.turn.number) awake_.push_back(number);
  }
  return true;
}

/// Completes the first instructions under way of the ends of a channel.
void ProgramWalk::end_meeting(Meeting& meeting)
{
  for (const std::size_t number : meeting.lanes) {
    if (!meeting.has_left) {
      lanes_[number].is_present = false;
      proceed(lanes_[number]);
      awake_.push_back(number);
    }
    count(lanes_[number]);
  }
}

void ProgramWalk::complete(LaneState& lane)
{
  proceed(lane);
  count(lane);
}

/// The lane leaves its turn.
void ProgramWalk::proceed(LaneState& lane)
{
  ++lane.turn.position;
  lane.has_turn = false;
}

/// Counts an instruction of the lane as completed.
void ProgramWalk::count(LaneState& lane)
{
  ++lane.completed;
  if (lane.completed >= lane.wakes_at) wake_waiters(lane);
}

void ProgramWalk::wake_waiters(LaneState& lane)
{
  lane.wakes_at = std::numeric_limits<std::uint64_t>::max();
  std::erase_if(lane.waiters, [&](const Waiter& waiter) {
    if (waiter.completed <= lane.completed) {
      awake_.push_back(waiter.lane);
      return true;
    }
    lane.wakes_at = std::min(lane.wakes_at, waiter.completed);
    return false;
  });
}

/// The lane that a lane waits for: of those at a channel, the first end that is missing.
std::size_t ProgramWalk::blocker_of(const LaneState& lane) const
{
  if (!lane.is_present) return lane.blocked_by;
  const auto& ends = meetings_[*lane.channel].lanes;
  return *std::find_if(ends.begin(), ends.end(), [&](std::size_t end) { return !lanes_[end].is_present; });
}

/// Follows the lanes that wait from one to the next, until one comes again or has ended.
std::string ProgramWalk::deadlock() const
{
  const auto first = std::find_if(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return !has_ended(lane); });
  std::vector<std::size_t> path;
  std::vector<bool> is_on_path(lanes_.size(), false);
  std::size_t next = first->turn.number;
  while (!is_on_path[next]) {
    path.push_back(next);
    is_on_path[next] = true;
    if (!has_ended(lanes_[next])) next = blocker_of(lanes_[next]);
  }
  const bool comes_round = !has_ended(lanes_[next]);
  if (comes_round) path.erase(path.begin(), std::find(path.begin(), path.end(), next));

  std::string text = comes_round ? "deadlock, each waits for the next and the last for the first: "
                                 : "deadlock, each waits for the next and the last has ended: ";
  for (std::size_t i = 0; i < std::min(path.size(), most_shown_lanes); ++i) {
    const Turn& turn = lanes_[path[i]].turn;
    if (i > 0) text += "; ";
    text += place_text(turn.at.rank, program_.lanes(turn.at.rank)[turn.at.lane], turn.position);
  }
  if (path.size() > most_shown_lanes) text += fmt::format("; and {} more", path.size() - most_shown_lanes);
  return text;
}

std::optional<std::string> deadlock_of(const Program& program)
{
  class Nothing : public WalkVisitor {
   public:
    void execute(const Turn& /*turn*/) override {}
    bool meet(std::size_t /*channel*/, std::span<const Turn* const> /*turns*/) override { return true; }
  } nothing;
  return ProgramWalk(program).run(1, nothing);
}

}  // namespace isobar
