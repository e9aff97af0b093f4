#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>

namespace isobar::results {

/// The number of devices worth using, fastest first, if layers could be cut anywhere and transfers were free.
struct DeviceCount {
  std::size_t by_speed = 0;  ///< if memory were unlimited
  /// The fewest fastest devices, at least by_speed, whose total memory holds the model; all devices if none suffice.
  std::size_t with_memory = 0;
};

/// Counts the devices worth using for a goal under a schedule of chains. O(D log D + L).
///
/// With F all work, v_1 >= v_2 >= … the speeds and S_k the sum of the first k, k devices are best with equal stage
/// times. The bottleneck is then F / S_k, so every device is worth using; the sequential sum is k F / S_k, so one is.
/// The pipeline takes (M-1+k) F / S_k: device k+1 helps if and only if v_{k+1} / S_k > 1 / (M-1+k). Once one does not
/// help, no later one does, since the left side times (M-1+k) only falls. Ties go to fewer devices. Memory as in the
/// fractional bound: in the aggregate, each layer with its need in the last stage and without buffers.
DeviceCount devices_worth_using(const CostModel& cost, const Goal& goal);

}  // namespace isobar::results
