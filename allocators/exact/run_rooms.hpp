#pragma once

#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Encodes how often the stages of one run (neighbours in one group) may still use each kind of the group, as a number
/// below states(group): the run's room. Kinds are counted separately where that takes at most `most_run_states` numbers
/// (core/plan/certificate.hpp) and tables stay small, else together. With one group nothing is counted.
class RunRooms {
 public:
  /// `cells`: how many numbers tables hold for each room.
  RunRooms(const StageTables& tables, std::size_t cells);

  std::size_t states(std::size_t group) const { return states_[group]; }
  std::size_t states_in_all() const { return states_in_all_; }
  /// Position of a group's rooms in a table of the rooms of all groups.
  std::size_t offset(std::size_t group) const { return offset_[group]; }
  /// The room with all devices of the group unused.
  std::size_t all(std::size_t group) const { return states_[group] - 1; }
  /// A use of `kind` reduces the room by this much.
  std::size_t step(std::size_t kind) const { return step_[kind]; }
  bool has(std::size_t room, std::size_t kind) const
  {
    return step_[kind] == 0 || room / step_[kind] % radix_[kind] > 0;
  }

  /// The room of a run in the group when some devices are used.
  template <typename IsUsed>
  std::size_t room_left(const StageTables& tables, std::size_t group, const IsUsed& is_used) const
  {
    std::size_t room = all(group);
    for (std::size_t kind = 0; kind < step_.size(); ++kind) {
      if (group_of_kind_[kind] != group) continue;
      for (const std::uint32_t device : tables.devices_of(kind)) {
        if (is_used(device)) room -= step_[kind];
      }
    }
    return room;
  }

  /// Calls visit(begin, end) for each interval of rooms in which the kind can be used.
  template <typename Visit>
  void for_each_stretch_with(std::size_t kind, const Visit& visit) const
  {
    if (step_[kind] == 0) {
      visit(std::size_t{0}, std::size_t{1});
      return;
    }
    const std::size_t period = step_[kind] * radix_[kind];
    const std::size_t states = states_[group_of_kind_[kind]];
    for (std::size_t begin = 0; begin < states; begin += period) visit(begin + step_[kind], begin + period);
  }

 private:
  std::vector<std::size_t> states_;         // of each group
  std::vector<std::size_t> offset_;         // of each group
  std::vector<std::size_t> step_;           // of each kind
  std::vector<std::size_t> radix_;          // of each kind
  std::vector<std::size_t> group_of_kind_;  // of each kind
  std::size_t states_in_all_ = 0;
};

}  // namespace isobar::allocators
