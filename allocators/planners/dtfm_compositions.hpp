#pragma once

#include "allocators/planners/dtfm_costs.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace isobar::allocators {

/// Numbers of devices of each class.
using ClassCounts = std::vector<std::uint16_t>;

/// Devices whose exchange changes no cost, class by class: as DT-FM's cost sees a cluster, a stage is how many devices
/// of each class it has.
class DeviceClasses {
 public:
  /// O(devices² · classes).
  explicit DeviceClasses(const DtFmCosts& costs);

  std::size_t size() const { return members_.size(); }
  const std::vector<std::size_t>& members(std::size_t of) const { return members_[of]; }
  std::uint16_t room(std::size_t of) const { return room_[of]; }
  const ClassCounts& rooms() const { return room_; }
  std::size_t class_of(std::size_t device) const { return class_of_[device]; }
  const std::vector<std::size_t>& classes_of_devices() const { return class_of_; }

  /// Classes whose exchange, all devices of one for all of the other, changes no cost are of one kind.
  std::size_t kinds() const { return kinds_; }
  std::size_t kind_of(std::size_t of) const { return kind_of_[of]; }

  /// All different times of a pass between two devices, ascending; a level is an index of these.
  const std::vector<double>& levels() const { return levels_; }
  /// The time of a hop by its level; infinity for levels().size().
  double time_of(std::size_t level) const { return times_[level]; }

  double sync_of(std::span<const std::uint16_t> stage) const;
  /// The least level of the slowest pass from a stage to the next, each device to one of its own: levels().size() if no
  /// two stages can have these devices. O(2^classes in a stage), mostly much less.
  std::size_t hop(std::span<const std::uint16_t> from, std::span<const std::uint16_t> to) const;
  /// A level that the hop is not below. O(classes²).
  std::size_t least_hop(std::span<const std::uint16_t> from, std::span<const std::uint16_t> to) const;

 private:
  /// Whether the devices of a stage all find partners in the next one within a level (Hall's condition).
  bool is_enough(std::size_t level, std::span<const std::uint16_t> from, std::span<const std::uint16_t> to,
                 const std::vector<std::vector<std::uint64_t>>& partners) const;

  std::vector<std::vector<std::size_t>> members_;
  ClassCounts room_;
  std::vector<std::size_t> class_of_;
  std::vector<std::size_t> kind_of_;
  std::size_t kinds_ = 0;
  std::vector<double> sync_;        // between two devices of these classes
  std::vector<std::size_t> level_;  // likewise
  std::vector<double> levels_;
  std::vector<double> times_;
  std::vector<std::vector<std::uint64_t>> receivers_;  // by level and class: which classes it reaches within the level
  std::vector<std::vector<std::uint64_t>> senders_;    // likewise: which classes reach it
};

/// Most classes of devices, and most compositions of a stage, that a search can handle.
inline constexpr std::size_t most_device_classes = 64;
inline constexpr std::size_t most_compositions = 12'000;

/// The number of compositions of a stage with that many devices; most_compositions + 1 if there are more than that.
std::size_t number_of_compositions(const DeviceClasses& classes, std::size_t devices);

/// All ways in which a stage can have devices of the classes, those with the shortest gradient sync first.
struct Compositions {
  /// number_of_compositions() must be at most most_compositions.
  Compositions(const DeviceClasses& classes, std::size_t devices);

  std::size_t size() const { return sync.size(); }
  std::span<const std::uint16_t> operator[](std::size_t index) const { return {&counts[index * stride], stride}; }

  std::size_t stride;
  ClassCounts counts;
  std::vector<double> sync;                 ///< ascending
  std::vector<std::size_t> representative;  ///< of each: the index of the one that exchanging classes makes of it
};

}  // namespace isobar::allocators
