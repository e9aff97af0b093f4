#include "sim/play/lanes.hpp"

#include "core/errors.hpp"

namespace isobar::sim {

void Lanes::begin_step()
{
  step_begin_ = now();
  for (auto& rank : state_.ranks) {
    for (auto& lane : rank.lanes) {
      lane.started = lane.completed = 0;
      if (lane.at_end()) continue;
      ++open_lanes_;
      take_turn(lane);
    }
  }
  ensure(open_lanes_ > 0, "a program without instructions");
}

void Lanes::begin(LaneState& lane)
{
  state_.ranks[lane.rank].memory += lane.turn.acquires;
  if (lane.turn.acquires.value > 0) report_memory(lane.rank);
  ++running_;
}

void Lanes::begin_on_device(LaneState& lane)
{
  begin(lane);
  lane.running = true;
  stamp(lane);
}

void Lanes::advance(LaneState& lane)
{
  if (lane.completed == lane.started) lane.first = lane.turn;
  ++lane.started;
  if (!lane.at_end()) take_turn(lane);
}

void Lanes::complete(LaneState& lane)
{
  lane.running = false;
  ++lane.started;
  end(lane, lane.turn, lane.begin, now());
}

void Lanes::end(LaneState& lane, const Instruction& instruction, Seconds begin, Seconds end)
{
  RankState& rank = state_.ranks[lane.rank];
  state_.last_progress = now();
  if (state_.sink != nullptr) {
    state_.sink->record({state_.step, lane.rank, instruction, begin - state_.begin, end - state_.begin, lane.memory});
  }
  rank.memory -= instruction.releases;
  if (instruction.releases.value > 0) report_memory(lane.rank);
  --running_;
  ++lane.completed;
  for (auto& waiting : rank.lanes) {
    const Wait& wait = waiting.turn.wait;
    if (wait.lane == lane.lane && wait.count == lane.completed && &waiting != &lane) to_try_.push_back(&waiting);
  }
  if (lane.completed < lane.length) {
    if (lane.lane == Lane::Compute) take_turn(lane);
    return;
  }
  if (--open_lanes_ > 0) return;
  step_times_.push_back(state_.last_progress - step_begin_);
  if (++state_.step == iterations_) {
    done_ = true;
  } else {
    begin_step();
  }
}

void Lanes::report_memory(std::size_t rank) const
{
  if (state_.sink != nullptr) state_.sink->memory_changed(rank, now() - state_.begin, state_.ranks[rank].memory);
}

}  // namespace isobar::sim
