#pragma once

#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::sim {

/// The order of instructions: the turn of each lane, what waits for it, and the end of each step.
class Lanes {
 public:
  Lanes(SimulationState& state, std::uint64_t iterations) : state_(state), iterations_(iterations) {}

  /// Gives each lane its first turn.
  void begin_step();
  /// Removes and returns a lane whose turn may start now; null when no lane is left to try.
  LaneState* next_to_try()
  {
    if (to_try_.empty()) return nullptr;
    LaneState* lane = to_try_.back();
    to_try_.pop_back();
    return lane;
  }
  /// Whether the lane's turn waits for no other lane of its rank.
  bool is_ready(const LaneState& lane) const
  {
    return !lane.running && !lane.at_end() &&
           state_.ranks[lane.rank].lane(lane.turn.wait.lane).completed >= lane.turn.wait.count;
  }

  /// Counts the lane's turn as begun and acquires its memory.
  void begin(LaneState& lane);
  /// Begins a turn that occupies the device until `complete`.
  void begin_on_device(LaneState& lane);
  /// Records the time and the rank's memory as those of the beginning.
  void stamp(LaneState& lane) const
  {
    lane.begin = now();
    lane.memory = state_.ranks[lane.rank].memory;
  }
  /// Gives a transfer lane its next turn while the message of its last one is in transit.
  void advance(LaneState& lane);
  /// Ends the turn of a compute lane.
  void complete(LaneState& lane);
  /// Ends an instruction of the lane that took from `begin` to `end`: releases its memory, records it in the trace and
  /// queues the lanes that waited for it. The last instruction ends the step and begins the next one.
  void end(LaneState& lane, const Instruction& instruction, Seconds begin, Seconds end);

  /// Reports the current memory of a rank to the sink.
  void report_memory(std::size_t rank) const;

  bool done() const { return done_; }
  /// Instructions that have begun and not ended.
  std::size_t running() const { return running_; }
  const std::vector<Seconds>& step_times() const { return step_times_; }

 private:
  void take_turn(LaneState& lane)
  {
    lane.turn = state_.program.at(lane.rank, lane.lane, lane.started);
    to_try_.push_back(&lane);
  }

  SimulationState& state_;
  std::uint64_t iterations_;
  std::vector<LaneState*> to_try_;
  std::size_t open_lanes_ = 0;  // with instructions left in this step
  std::size_t running_ = 0;
  bool done_ = false;
  Seconds step_begin_;
  std::vector<Seconds> step_times_;
};

}  // namespace isobar::sim
