#include "sim/play/lanes.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <utility>

namespace isobar::sim {

namespace {

/// The number of completions, over all periods, of the lane that a wait of an instruction of `period` is for.
std::uint64_t completions_of(const Wait& wait, std::uint64_t period, std::uint64_t length)
{
  return period < wait.periods_back ? 0 : (period - wait.periods_back) * length + wait.count;
}

bool is_woken_later(const Waiter& a, const Waiter& b)
{
  return a.count != b.count ? a.count > b.count : a.lane->id > b.lane->id;
}

}  // namespace

void Lanes::begin_program(JobState& job)
{
  job.last_period_end = now();
  for (auto& rank : job.ranks) {
    rank.lanes_in_use = static_cast<std::size_t>(
        std::ranges::count_if(rank.lanes, [](const LaneState& lane) { return lane.length > 0; }));
    rank.lanes_in_period = {rank.lanes_in_use, rank.lanes_in_use};
    rank.lanes_in_step_in_use = static_cast<std::size_t>(
        std::ranges::count_if(rank.lanes, [](const LaneState& lane) { return lane.length > 0 && lane.keeps_step; }));
    rank.lanes_in_step = {rank.lanes_in_step_in_use, rank.lanes_in_step_in_use};
    if (rank.lanes_in_use > 0) ++job.ranks_in_use;
    for (auto& lane : rank.lanes) {
      if (lane.length > 0 && lane.keeps_step) lane.step_end = lane.step_completed = end_of_step(lane, 0);
    }
    for (auto& lane : rank.lanes) {
      if (lane.length > 0) take_turn(lane);
    }
  }
  ensure(job.ranks_in_use > 0, "a program without instructions");
}

/// Loads the instruction at the lane's place. Lanes that wait are not tried before they are woken.
void Lanes::take_turn(LaneState& lane)
{
  RankState& rank = rank_of(lane);
  lane.turn.instruction = lane.job->program->at(lane.rank, lane.id, lane.turn.position);
  lane.waits_over = 0;
  const bool waits_for_period = lane.turn.position == 0 && lane.turn.period > rank.periods_ended + 1;
  const bool waits_for_step = lane.keeps_step && lane.step > rank.steps_ended + 1;
  if (waits_for_period || waits_for_step) {
    lane.state = TurnState::Held;
    rank.held.push_back(&lane);
  } else {
    await(lane);
  }
}

/// Queues the lane with the next one that it waits for, or to be tried.
void Lanes::await(LaneState& lane)
{
  RankState& rank = rank_of(lane);
  const Waits& waits = lane.turn.instruction.waits;
  for (; lane.waits_over < waits.size(); ++lane.waits_over) {
    const Wait& wait = waits.begin()[lane.waits_over];
    LaneState& other = rank.lanes[wait.lane];
    const Waiter waiter{completions_of(wait, lane.turn.period, other.length), &lane};
    if (other.completed >= waiter.count) continue;
    auto& waiters = other.waiters;
    waiters.insert(std::upper_bound(waiters.begin(), waiters.end(), waiter, is_woken_later), waiter);
    lane.state = TurnState::Waiting;
    return;
  }
  lane.state = TurnState::Ready;
  to_try_.push_back(&lane);
}

void Lanes::wake_waiters(LaneState& lane)
{
  auto& waiters = lane.waiters;
  while (!waiters.empty() && waiters.back().count == lane.completed) {
    LaneState& woken = *waiters.back().lane;
    waiters.pop_back();
    ++woken.waits_over;
    await(woken);
  }
}

void Lanes::begin(LaneState& lane)
{
  const Hold& acquired = lane.turn.instruction.acquires;
  if (acquired.size.value > 0) {
    rank_of(lane).memory_of(acquired.tier) += acquired.size;
    report_memory(*lane.job, lane.rank, acquired.tier);
  }
  ++running_;
}

void Lanes::begin_running(LaneState& lane)
{
  begin(lane);
  lane.state = TurnState::Running;
  SimulationState::stamp(lane);
}

void Lanes::complete(LaneState& lane)
{
  end(lane, lane.turn, lane.begin, now());
  proceed(lane);
}

void Lanes::advance(LaneState& lane)
{
  if (lane.in_transit++ == 0) lane.first = lane.turn;
  proceed(lane);
}

void Lanes::arrive(LaneState& lane, Seconds begin, Seconds end)
{
  Turn& first = lane.first;
  this->end(lane, first, begin, end);
  if (--lane.in_transit == 0) return;
  if (++first.position == lane.length) {
    first.position = 0;
    ++first.period;
  }
  first.instruction = lane.job->program->at(lane.rank, lane.id, first.position);
}

/// Gives the lane its next turn, in this step and period or the next.
void Lanes::proceed(LaneState& lane)
{
  if (++lane.turn.position == lane.step_end && lane.keeps_step) lane.step_end = end_of_step(lane, ++lane.step);
  if (lane.turn.position < lane.length) return take_turn(lane);
  lane.turn.position = 0;
  if (++lane.turn.period == lane.job->iterations) {
    lane.state = TurnState::Over;
  } else {
    take_turn(lane);
  }
}

/// Ends an instruction of the lane: records it in the trace, releases its memory and queues the lanes that waited for
/// it.
void Lanes::end(LaneState& lane, const Turn& turn, Seconds begin, Seconds end)
{
  RankState& rank = rank_of(lane);
  state_.last_progress = now();
  if (lane.job->sink != nullptr) {
    lane.job->sink->record({turn.period, lane.rank, turn.position, turn.instruction, begin - state_.begin,
                            end - state_.begin, lane.memory});
  }
  const Hold& released = turn.instruction.releases;
  if (released.size.value > 0) {
    rank.memory_of(released.tier) -= released.size;
    report_memory(*lane.job, lane.rank, released.tier);
  }
  --running_;
  ++lane.completed;
  wake_waiters(lane);
  if (lane.keeps_step && lane.completed == lane.step_completed) end_step(lane);
  if (turn.position + 1 == lane.length && --rank.lanes_in_period[turn.period % 2] == 0)
    end_period(*lane.job, rank, turn.period);
}

/// The position in its period where a step of a lane ends.
std::uint64_t Lanes::end_of_step(const LaneState& lane, std::uint64_t step)
{
  const std::uint64_t steps = rank_of(lane).steps;
  return steps == 1 ? lane.length : lane.job->program->end_of_step(lane.rank, lane.id, step % steps);
}

/// Ends a step of a lane. If all have ended it that keep step, they may now enter the one after the next.
void Lanes::end_step(LaneState& lane)
{
  RankState& rank = rank_of(lane);
  const std::uint64_t step = lane.ended_steps++;
  lane.step_completed = lane.ended_steps / rank.steps * lane.length + end_of_step(lane, lane.ended_steps);
  if (--rank.lanes_in_step[step % 2] > 0) return;
  ++rank.steps_ended;
  rank.lanes_in_step[step % 2] = rank.lanes_in_step_in_use;
  release_held(rank);
}

/// Lets lanes take their turns that may enter their step and period now.
void Lanes::release_held(RankState& rank)
{
  const std::vector<LaneState*> held = std::exchange(rank.held, {});
  for (auto* lane : held) take_turn(*lane);
}

/// Ends a period on a rank, whose lanes may now enter the one after the next.
void Lanes::end_period(JobState& job, RankState& rank, std::uint64_t period)
{
  ++rank.periods_ended;
  rank.lanes_in_period[period % 2] = rank.lanes_in_use;
  release_held(rank);

  const std::uint64_t index = period - job.step_times.size();
  if (index == job.ranks_in_period.size()) job.ranks_in_period.push_back(job.ranks_in_use);
  if (--job.ranks_in_period[index] > 0) return;
  job.ranks_in_period.pop_front();  // no rank ends a period before the previous one
  job.step_times.push_back(state_.last_progress - job.last_period_end);
  job.last_period_end = state_.last_progress;
  if (job.step_times.size() == job.iterations) ++jobs_done_;
}

void Lanes::report_memory(const JobState& job, std::size_t rank, Tier tier) const
{
  if (job.sink != nullptr) {
    job.sink->memory_changed(rank, tier, now() - state_.begin, job.ranks[rank].memory_of(tier));
  }
}

}  // namespace isobar::sim
