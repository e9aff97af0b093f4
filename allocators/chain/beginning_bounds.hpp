#pragma once

#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/memory_reach.hpp"
#include "allocators/chain/path_table.hpp"
#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators::chain_dp {

/// Relative difference below which costs count as equal. It is well above the rounding of a sum and well below the
/// promised precision.
inline constexpr double resolution = 1e-13;

/// Bounds on the stages before a cut, for each device of the last of these stages, when stage costs are limited.
///
/// A pass of the search goes from the end of the chain to its beginning. With these bounds it skips states that no
/// beginning reaches, or that every beginning makes too expensive.
class BeginningBounds {
 public:
  /// Keeps references to the cost model and the table.
  BeginningBounds(const CostModel& cost, Communication communication, const MemoryReach& reach);

  /// Adds a path by which device `from` can send.
  void add_path(std::size_t from, const AffinePath& path);

  /// Computes front() and furthest_end() as if transfers were free and every stage needed only the memory of a last
  /// stage. Returns the least value above `limit` that occurred: any limit below it gives the same result. O(devices
  /// log layers).
  double find_fronts(double limit);
  /// Sets front() and furthest_end() to the end of the chain: no state is unreachable.
  void open_fronts();

  /// Computes least_before() for layers that may be cut anywhere. Devices up to the given one are filled up to the
  /// limit, those with the least time per FLOP first.
  ///
  /// Under serial communication, a full device spends part of the limit on its two cheapest transfers; a device that is
  /// not full spends more time per FLOP. The first stage sends no gradients, so it can hold more work than another full
  /// device; that work is left out of the bound. O(devices x layers + devices² log devices), the second term, under
  /// serial communication, for each cut with fewer bytes than all cuts before it.
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
