#pragma once

#include "allocators/exact/stage_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// How often the stages of one run, neighbours in one group, may still use each kind of the group: a number below
/// states(group). Kinds are counted apart where that takes at most `most_run_rooms` numbers (core/plan/certificate.hpp)
/// and tables stay small, else together. Where all devices are one group nothing is counted.
class RunRooms {
 public:
  /// `cells`: tables hold that many numbers for each room.
  RunRooms(const StageTables& tables, std::size_t cells);

  std::size_t states(std::size_t group) const { return states_[group]; }
  std::size_t states_in_all() const { return states_in_all_; }
  /// Where a group's rooms begin in a table of the rooms of all groups.
  std::size_t offset(std::size_t group) const { return offset_[group]; }
  /// The room that has all devices of the group.
  std::size_t all(std::size_t group) const { return states_[group] - 1; }
  /// A use of `kind` makes the room this much less.
  std::size_t step(std::size_t kind) const { return step_[kind]; }
  bool has(std::size_t room, std::size_t kind) const
  {
    return step_[kind] == 0 || room / step_[kind] % radix_[kind] > 0;
  }

  /// The room that a run in the group has where some devices are used.
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

  /// Calls visit(begin, end) for each stretch of rooms that have the kind.
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
