#pragma once

#include "core/order/order.hpp"
#include "core/program/program.hpp"
#include "core/program/residence.hpp"
#include "core/units.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// The lanes of a rank that uses the machine its device is in. Internal to schedules/lowering.
namespace isobar::schedules {

/// A part of a rank: what its copies and updates carry.
struct TieredPart {
  Residence residence;
  std::uint32_t stage = 0;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;
  Bytes parameters;
  Bytes tied;  ///< parameters of another part that also passes, which this one uses
  Bytes gradients;
  Bytes optimizer;
  Bytes activations;  ///< of a micro-batch
  Seconds update;
  Wait synced;  ///< for the sum of its gradients over replicas; of no completion without one
};

/// A rank of which a part lives elsewhere than on the device.
struct TieredRank {
  std::vector<TieredPart> parts;
  LaneId first_lane = 0;  ///< the number of lanes that it has already
  /// For what all updates need to know of all gradients, in the lane that brings it; of no completion where they need
  /// nothing, or where the rank's own backwards are all.
  Wait facts;
  bool needs_facts = false;
};

/// A lane of copies, updates or disk accesses.
struct TierLane {
  Lane lane;
  std::vector<Instruction> instructions;
};

/// What the machine adds to a rank's program.
///
/// Parameters of parts that are not on the device take turns in `parameter_slots` places: where all are taken, those
/// leave that are needed last. So copies into the device go in the order of need, as far ahead as places are free, and
/// the parts of the last forwards stay for their backwards. A gradient takes one of `gradient_slots` places from the
/// part's first backward of the step until it has left the device after the last one; then the machine updates the
/// part. Activations leave the device after a forward and return during the task before their backward.
///
/// Takes memory for each task and copy of a step, unlike the other lanes. O(n log n) for n tasks.
class TierLanes {
 public:
  /// @throws InputError "stages: …" if the backwards of more parts overlap than there are places for gradients.
  TierLanes(const Order& order, const TieredRank& rank);

  const std::vector<TierLane>& lanes() const { return lanes_; }
  /// What task `position` of the order waits for besides.
  const Waits& waits_of(std::uint64_t position) const { return task_waits_[position]; }
  /// The parts that the device updates, in ascending order.
  const std::vector<std::uint32_t>& parts_updated_on_device() const { return device_updates_; }

 private:
  std::vector<TierLane> lanes_;
  std::vector<Waits> task_waits_;  // by position of the order
  std::vector<std::uint32_t> device_updates_;
};

/// The memory that the parts of a rank hold throughout, by tier: parameters, gradients and optimizer where they live,
/// places on the device for those that pass through, and on the host for gradients and staged optimizer states.
std::array<Bytes, tier_count> memory_of_tiers(const TieredRank& rank);

/// Places on the host for gradients that wait for their update, where that need not wait for others.
inline constexpr std::size_t host_gradient_slots = 3;
/// Optimizer states between their disk and the update.
inline constexpr std::size_t staged_states = 3;

}  // namespace isobar::schedules
