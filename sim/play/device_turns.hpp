#pragma once

#include "core/jobs/mix.hpp"
#include "core/jobs/turn_order.hpp"
#include "sim/play/lanes.hpp"
#include "sim/play/simulation.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::sim {

/// Devices that one job computes on at a time, in the order of TurnOrder. Computations without work need no turn, and
/// neither do updates on a machine, nor those whose parameters are gathered afterwards (gathers_updates): in a turn,
/// the device would wait for the gather. They run beside the computations of other jobs.
///
/// With hand-over after a step, a turn begins with the updates of the step before and ends with the last computation
/// with work that is no update. Updates after the last step of a job are a turn of their own. A job leaves a device
/// after its last computation there.
class DeviceTurns {
 public:
  DeviceTurns(const SimulationState& state, Lanes& lanes, const Mix& mix);

  /// Lets a job take part in the turns of its devices.
  void join(const JobState& job) { order_.join(job.index); }
  /// Whether the lane's turn, a computation with work on a device, may begin now. If not, the lane is tried again when
  /// its job gets the device.
  bool may_compute(LaneState& lane);
  /// Gives the device back if its turn ends with the lane's computation, which has ended. Call before the lane
  /// proceeds.
  void computed(const LaneState& lane);

  /// Call when nothing runs. @throws DeadlockOfTurns when a device is kept for one job while others ask for it.
  void throw_if_deadlocked() const;

 private:
  /// A rank.
  struct Place {
    bool computes = false;
    bool updates_in_turns = true;
    std::size_t device = 0;
    std::uint64_t end_of_step = 0;  // position of the last computation that is no update
    std::uint64_t last = 0;         // of the last computation
    bool holds = false;
    bool has_left = false;
    LaneState* waiting = nullptr;  // has asked for the device
    Seconds asked;
    Seconds got;
  };

  static std::vector<std::vector<Place>> places_of(const SimulationState& state, std::vector<std::string>& devices);
  std::vector<std::vector<std::size_t>> devices_of_jobs() const;
  Place& place_of(const LaneState& lane) { return places_[lane.job->index][lane.rank]; }
  /// Whether the lane's computation needs no turn.
  static bool is_outside(const Place& place, const LaneState& lane)
  {
    return !place.updates_in_turns && lane.turn.instruction.opcode == Opcode::Update;
  }
  LaneState* grant(std::size_t device);
  std::string names_of(const std::vector<std::size_t>& jobs) const;

  const SimulationState& state_;
  Lanes& lanes_;
  HandOver hand_over_;
  std::vector<std::string> devices_;        // names
  std::vector<std::vector<Place>> places_;  // by job and rank
  std::vector<std::vector<Place*>> at_;     // by device and job; null for a job that is not there
  std::vector<std::uint64_t> memory_;       // of order_
  TurnOrder order_;
};

}  // namespace isobar::sim
