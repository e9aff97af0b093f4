#pragma once

#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace isobar::sim {

/// The order of instructions: the turn of each lane, what waits for it, and the ends of periods.
class Lanes {
 public:
  Lanes(SimulationState& state, std::uint64_t iterations) : state_(state), iterations_(iterations) {}

  /// Gives each lane its first turn.
  void begin_program();
  /// Removes and returns a lane whose turn may start now; null when no lane is left to try.
  LaneState* next_to_try()
  {
    if (to_try_.empty()) return nullptr;
    LaneState* lane = to_try_.back();
    to_try_.pop_back();
    return lane;
  }

  /// Counts the lane's turn as begun and acquires its memory.
  void begin(LaneState& lane);
  /// Begins a turn that occupies the lane until `complete`: a computation or a collective.
  void begin_running(LaneState& lane);
  /// Ends such a turn, and gives the lane the next one.
  void complete(LaneState& lane);
  /// Gives a lane of transfers its next turn while the message of the last one is in transit.
  void advance(LaneState& lane);
  /// Ends the first transfer in transit of the lane, which took from `begin` to `end`.
  void arrive(LaneState& lane, Seconds begin, Seconds end);

  /// Reports the current memory of a rank to the sink.
  void report_memory(std::size_t rank, Tier tier) const;

  bool done() const { return step_times_.size() == iterations_; }
  /// Instructions that have begun and not ended.
  std::size_t running() const { return running_; }
  const std::vector<Seconds>& step_times() const { return step_times_; }

 private:
  void end(LaneState& lane, const Turn& turn, Seconds begin, Seconds end);
  void proceed(LaneState& lane);
  void take_turn(LaneState& lane);
  void await(LaneState& lane);
  void wake_waiters(LaneState& lane);
  void end_period(RankState& rank, std::uint64_t period);

  SimulationState& state_;
  std::uint64_t iterations_;
  std::vector<LaneState*> to_try_;
  std::size_t running_ = 0;
  std::size_t ranks_in_use_ = 0;             // that have instructions
  std::deque<std::size_t> ranks_in_period_;  // that have not ended it; from the first one that not all have ended
  Seconds last_period_end_;
  std::vector<Seconds> step_times_;  // of the periods that all ranks have ended
};

}  // namespace isobar::sim
