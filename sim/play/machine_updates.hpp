#pragma once

#include "sim/play/lanes.hpp"
#include "sim/play/simulation_state.hpp"

#include <vector>

namespace isobar::sim {

/// Updates on the processors of machines. Updates on one machine share it as SimGrid shares a host. With the machine to
/// itself, an update runs at one rate while a device of the machine computes and at another one while none does
/// (MachineRates). SimGrid knows one speed: an update whose rate changes is started again with the work that remains.
class MachineUpdates {
 public:
  MachineUpdates(SimulationState& state, Lanes& lanes) : state_(state), lanes_(lanes) {}

  /// Starts the update that is the turn of the lane. @throws InputError for a rank whose device is in no machine, and
  /// when the machine is off.
  void start(LaneState& lane);
  void complete(LaneState& lane);

  /// Counts a computation of the rank's device that begins or ends. If the first one of the machine's devices begins or
  /// the last one ends, updates change their rate at this time, after everything that starts and ends now.
  void device_begins(const RankState& rank);
  void device_ends(const RankState& rank);
  /// Removes the timer. Needed before the process exits.
  void remove_timer();

 private:
  void run(LaneState& lane, Flops work);
  void change_rates_of(MachineState& machine);
  void change_rates();

  SimulationState& state_;
  Lanes& lanes_;
  std::vector<MachineState*> changed_;  // since `change_rates`
  Timer* timer_ = nullptr;              // for `change_rates`
};

}  // namespace isobar::sim
