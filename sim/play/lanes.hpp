#pragma once

#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::sim {

/// The order of instructions: the turn of each lane, what waits for it, and the ends of periods.
class Lanes {
 public:
  explicit Lanes(SimulationState& state) : state_(state) {}

  /// Gives each lane of a job its first turn.
  void begin_program(JobState& job);
  /// Removes and returns a lane whose turn may start now; null when no lane is left to try.
  LaneState* next_to_try()
  {
    if (to_try_.empty()) return nullptr;
    LaneState* lane = to_try_.back();
    to_try_.pop_back();
    return lane;
  }

  /// Lets a lane be tried again.
  void try_again(LaneState& lane) { to_try_.push_back(&lane); }

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

  /// Reports the current memory of a rank to the sink of its job.
  void report_memory(const JobState& job, std::size_t rank, Tier tier) const;

  /// Whether all jobs have ended all their periods.
  bool done() const { return jobs_done_ == state_.jobs.size(); }
  /// Instructions that have begun and not ended.
  std::size_t running() const { return running_; }

 private:
  void end(LaneState& lane, const Turn& turn, Seconds begin, Seconds end);
  void proceed(LaneState& lane);
  void take_turn(LaneState& lane);
  void await(LaneState& lane);
  void wake_waiters(LaneState& lane);
  static std::uint64_t end_of_step(const LaneState& lane, std::uint64_t step);
  void end_step(LaneState& lane);
  void release_held(RankState& rank);
  void end_period(JobState& job, RankState& rank, std::uint64_t period);

  SimulationState& state_;
  std::vector<LaneState*> to_try_;
  std::size_t running_ = 0;
  std::size_t jobs_done_ = 0;
};

}  // namespace isobar::sim
