#pragma once

#include "allocators/chain/memory_reach.hpp"
#include "allocators/chain/path_table.hpp"
#include "core/plan/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <limits>
#include <vector>

namespace isobar::allocators::chain_dp {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
/// Costs closer than this (relative) count as equal: well above the rounding of a sum, well below the promised
/// precision.
inline constexpr double resolution = 1e-13;

/// Bounds on the stages before a cut, by the device of the last of them, when stage costs are limited.
///
/// A pass goes through the chain from its end and has not chosen its beginning yet: states that no beginning reaches,
/// or that every beginning makes too expensive, are left out.
class BeginningBounds {
 public:
  /// Keeps references to the cost model and the table.
  BeginningBounds(const CostModel& cost, Communication communication, const MemoryReach& reach);

  /// Adds a path by which device `from` can send.
  void add_path(std::size_t from, const AffinePath& path);

  /// Finds front() and furthest_end() as if transfers were free and memory as at the end of the chain. Returns the
  /// least value above the limit that was met: below it, limits give the same result. O(devices log layers).
  double find_fronts(double limit);
  /// Sets front() and furthest_end() to the end of the chain: no state is unreachable.
  void open_fronts();

  /// Finds least_before(): layers cut anywhere, on the devices up to one, each within the limit, those first that take
  /// least time for their work.
  ///
  /// Under serial communication a full device spends part of the limit on its two cheapest transfers; less than full it
  /// only fares worse. The first stage sends no gradients, so it can hold more than a full device: that much work is
  /// left out. O(devices x layers + devices² log devices), the latter for each cut of a new least size under serial.
  void find_least_sums(double limit);

  /// The furthest layer at which a stage on the device can begin.
  std::size_t front(std::size_t device) const { return front_[device]; }
  /// The furthest end of a stage on the device.
  std::size_t furthest_end(std::size_t device) const { return furthest_end_[device]; }
  /// Lower bound, in seconds, on the summed costs of the stages before `cut`, the last of them on the device.
  double least_before(std::size_t device, std::size_t cut) const { return least_before_[device * layers_ + cut]; }

 private:
  /// What one device can add to a beginning within the limit: the most work, and the time per FLOP.
  struct Filling {
    double most_work;
    double seconds_per_flop;
  };

  double work(std::size_t first, std::size_t end) const;
  double fill_devices(double limit, std::size_t last, double output, double gradient,
                      std::vector<Filling>& fillings) const;

  const CostModel& cost_;
  Communication communication_;
  const MemoryReach& reach_;
  std::size_t layers_;
  std::size_t devices_;
  std::vector<double> seconds_per_flop_;
  std::vector<AffinePath> best_path_;  // of each device: the least latency and most bandwidth that it sends by
  std::vector<std::size_t> front_;
  std::vector<std::size_t> furthest_end_;
  std::vector<double> least_before_;  // [device][cut]
};

}  // namespace isobar::allocators::chain_dp
