#pragma once

#include "core/program/intervals.hpp"
#include "core/program/player.hpp"
#include "core/program/shared_flows.hpp"
#include "core/program/shared_updates.hpp"
#include "core/program/walk.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

/// The times in which the devices of each machine compute, ascending and apart.
using BusyTimes = std::map<std::size_t, std::vector<Interval>>;
/// Whether busy times are the same, but for rounding: updates of several ranks may end in one order or the other, which
/// moves the last digits of what follows.
bool are_equal(const BusyTimes& some, const BusyTimes& others);

/// Whether updates of some machine are slower while its devices compute.
bool has_two_update_rates(const PlayerRates& rates);
/// Whether a machine updates anything.
bool uses_host(const Program& program);

/// How ranks use the machines that they are in: copies, accesses of the disk and updates. Internal to play_program.
/// Keeps references.
class MachineUse {
 public:
  MachineUse(const PlayerRates& rates, const BusyTimes& busy) : rates_(rates), busy_(busy) {}

  /// How long an instruction of a lane of this engine takes alone, if it begins at a time, in seconds.
  double time_alone(const Turn& turn, Engine engine, double begin) const;

  /// Lets an instruction begin that shares what it uses with others. Copies and accesses of the disk become a flow of
  /// `owner` among `flows`, updates end by advance().
  void begin(const Turn& turn, Engine engine, double begin, std::size_t owner, SharedFlows& flows);
  /// When the next update begins or ends; infinite without one.
  double next() const;
  /// Follows the updates until next(). @returns the owners of those that have ended, until the next call.
  const std::vector<std::size_t>& advance();
  /// The time up to which updates have been followed last.
  double now() const { return now_; }

 private:
  const MachineRates& machine_of(const Turn& turn) const;
  const std::vector<Interval>& busy_times_of(const MachineRates& machine) const;
  SharedUpdates& updates_on(const MachineRates& machine);
  std::vector<SharedLink> links_of(const MachineRates& machine, Engine engine);

  const PlayerRates& rates_;
  const BusyTimes& busy_;
  std::map<std::size_t, SharedUpdates> updates_;                // by machine
  std::map<std::size_t, std::vector<std::string>> disks_;       // by machine: names for their links
  std::map<std::pair<std::size_t, Engine>, std::size_t> ways_;  // by rank
  double now_ = 0;
};

}  // namespace isobar
