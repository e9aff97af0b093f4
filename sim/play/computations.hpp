#pragma once

#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"

#include <cstddef>
#include <vector>

namespace isobar::sim {

/// Computations on devices, and updates on the processors of machines. Those on one host share it as SimGrid shares a
/// host. With the host to itself,
///
/// - a device is `interference` times slower while a collective of a rank on it is under way;
/// - an update on a machine runs at one rate while a device of the machine computes, and at another one while none does
///   (MachineRates).
///
/// SimGrid knows one speed: a computation whose rate changes is started again with what remains.
class Computations {
 public:
  Computations(SimulationState& state, Lanes& lanes) : state_(state), lanes_(lanes) {}

  /// Starts the computation that is the turn of the lane. @throws InputError when the device is off, for an update on a
  /// machine by a rank whose device is in none, and when the machine is off.
  void start(LaneState& lane);
  void complete(LaneState& lane);

  /// Counts a collective of a rank that begins or ends. Rates change at this time, after everything that starts and
  /// ends now.
  void collective_begins(const RankState& rank);
  void collective_ends(const RankState& rank);
  /// Removes the timer. Needed before the process exits.
  void remove_timer();

 private:
  double rate_of(const LaneState& lane) const;
  void run(LaneState& lane, Seconds left);
  void rates_of_machine_change(const RankState& rank);
  void rates_of_device_change(const DeviceState& device);
  void rate_changes(LaneState& lane);
  void change_rates();

  SimulationState& state_;
  Lanes& lanes_;
  std::vector<LaneState*> changed_;  // since `change_rates`
  Timer* timer_ = nullptr;           // for `change_rates`
};

}  // namespace isobar::sim
