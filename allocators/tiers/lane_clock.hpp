#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Times the lanes of one device and its machine, as a player would its Program, for searches that try many shapes.
///
/// Lanes take their items in order. An item begins when its lane is free and its needs are met. An update advances at
/// one rate while the compute lane works and at another while it does not. O(items).
class LaneClock {
 public:
  enum Lane : std::uint8_t { Compute, CopyIn, CopyOut, Host, DiskRead, DiskWrite };
  static constexpr std::size_t lane_count = 6;

  /// `count` items of a lane are done, of the period `periods_back` before; met in periods without one.
  struct Need {
    Lane lane = Compute;
    std::uint8_t periods_back = 0;
    std::uint32_t count = 0;  ///< 0: nothing
  };
  struct Item {
    double amount = 0;  ///< seconds; of lane Host, work in FLOP
    std::array<Need, 3> needs = {};

    void add(Need need);
  };

  /// Adds an item to a lane; returns its number there.
  std::size_t add(Lane lane, const Item& item);
  Item& item(Lane lane, std::size_t number) { return items_[lane][number]; }
  std::size_t length(Lane lane) const { return items_[lane].size(); }

  /// The time from the end of the period before `counted` to that of `counted`, of `periods` in all.
  /// @throws std::logic_error for items that wait for each other.
  Seconds time_of(std::uint64_t counted, std::uint64_t periods, FlopsPerSecond idle_rate,
                  FlopsPerSecond busy_rate) const;

 private:
  std::array<std::vector<Item>, lane_count> items_;
};

}  // namespace isobar::allocators
