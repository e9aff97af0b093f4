#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace isobar::allocators {

/// Table of how far a stage can reach on each device within the device's memory.
///
/// Level k stands for stages with k stages after them, fewer than there are layers; the last level also for those with
/// more. There is only one level
/// if the number of stages after a stage changes no reach. O(levels x layers x (layers + devices log layers)) time,
/// O(levels x layers x devices) memory.
class MemoryReach {
 public:
  /// Devices have `memory_factor` times their memory. `each_layer` is called between layers and may throw.
  MemoryReach(const CostModel& cost, const Goal& goal, double memory_factor, const std::function<void()>& each_layer);

  std::size_t levels() const { return levels_; }
  /// The level of a stage before a stage of `level`.
  std::size_t level_before(std::size_t level) const { return level + 1 < levels_ ? level + 1 : level; }

  /// True when layers first..end-1 fit on the device.
  bool fits(std::size_t level, std::size_t device, std::size_t first, std::size_t end) const
  {
    const Reach& reach = reach_[(level * devices_ + device) * layers_ + first];
    if (end <= reach.all) return true;
    return end <= reach.furthest && fits_exactly(level, device, first, end);
  }
  /// The furthest end that fits from `first`; `first` itself when not even one layer fits. Nearer ends may not fit: the
  /// end of a stage determines its buffers.
  std::size_t furthest(std::size_t level, std::size_t device, std::size_t first) const
  {
    return reach_[(level * devices_ + device) * layers_ + first].furthest;
  }
  /// The furthest end of a stage on `device` that begins at `first` or earlier, whatever follows.
  std::size_t furthest_up_to(std::size_t device, std::size_t first) const
  {
    return furthest_up_to_[device * layers_ + first];
  }

  /// True when every stage that fits still fits after layers at either end are removed. O(levels x layers x devices).
  bool is_hereditary() const;

 private:
  struct Reach {
    std::uint32_t all;       // every end up to here fits
    std::uint32_t furthest;  // the last end that fits
  };

  bool fits_exactly(std::size_t level, std::size_t device, std::size_t first, std::size_t end) const;
  void tabulate(std::size_t level, const std::function<void()>& each_layer);

  const CostModel* cost_;
  std::size_t layers_;
  std::size_t devices_;
  std::size_t levels_ = 1;
  std::vector<std::uint64_t> in_flight_;  // of each level
  std::vector<double> memory_;            // of each device, bytes
  std::vector<Reach> reach_;              // [level][device][first]
  std::vector<std::uint32_t> furthest_up_to_;
};

}  // namespace isobar::allocators
