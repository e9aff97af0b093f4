#pragma once

#include "core/order/order.hpp"
#include "core/units.hpp"
#include "schedules/orders/listed.hpp"
#include "schedules/orders/schedule.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::schedules {

/// What one device of a pipeline does for a micro-batch, and its hops to the next device. A hop takes its delay, of
/// which its data occupies the lane: the next message arrives at least its own data later.
struct DeviceTimes {
  Seconds forward;
  Seconds backward_input;  ///< the whole backward, if `backward_weight` is 0
  Seconds backward_weight;
  Seconds output = {};       ///< from the end of a forward until the next device has its activations; latency + data
  Seconds gradient = {};     ///< from the end of the next device's backward until this device has the gradient
  std::uint64_t slots = 1;   ///< micro-batches that it may hold, from the start of their forward to the end of their
                             ///< last backward; at least 1
  Seconds output_data = {};  ///< of `output`, at most all of it
  Seconds gradient_data = {};
};

/// A step of M micro-batches on a chain of devices. Transfers of one lane are in order; others never wait for each
/// other.
struct PipelineTimes {
  std::vector<DeviceTimes> devices;
  std::uint64_t microbatches = 1;
  bool splits_backward = false;  ///< whether backward_weight is a task of its own
  Seconds input_data = {};       ///< between the arrivals of two inputs of the first device; of makespan_bound only
};

/// Orders by device, and the time of the step under them, without the updates.
struct ListedOrders {
  std::vector<Order> orders;
  Seconds makespan;
};

/// Finds orders for unequal devices and delays by list scheduling: again and again, the device that can start first
/// starts its first ready task. Sixteen variants differ in what goes first at ties, whether weight gradients run at
/// once or fill gaps, how many forwards may run ahead of the backwards, and whether a forward may delay a backward that
/// arrives during it. The shortest result, the first of equal ones, is then improved by exchanging neighbouring tasks
/// of a device as long as that shortens it, within a fixed number of evaluations.
///
/// O(devices^2 · micro-batches) time, and at most about a second of exchanges. Deterministic. Memory in proportion to
/// devices · micro-batches; orders without loops. @throws std::logic_error without devices, micro-batches or slots.
ListedOrders list_schedule(const PipelineTimes& times);

/// A lower bound on the makespan of every order of these times within the devices' slots: the largest of, over devices
/// i, with head_i the way there and back_i the way back, and l_i from the start of a forward on i to the end of its
/// backward at the earliest:
/// - all work of i after head_i, and all its forwards and backwards before back_i and the last weight gradient;
/// - one micro-batch there and back, and the others one after the other on the slowest device or lane of its way;
/// - the idle time before the first backward on i, when its slots are full;
/// - slots: ceil(M / slots) rounds of l_i and the weight gradient.
/// O(devices). @throws as `list_schedule` does.
Seconds makespan_bound(const PipelineTimes& times);

/// The makespan of given orders: each device works in its order, and a task starts when its inputs have arrived.
/// @throws InputError for orders in which devices wait for each other.
Seconds makespan_of(const PipelineTimes& times, const std::vector<Order>& orders);

/// The schedule whose orders an allocator makes by `list_schedule`; its plans keep them like those of `listed`.
inline constexpr Schedule greedy_schedule = {
    .name = "greedy",
    .summary = "orders for unequal stages and delays, made by list scheduling for the times of a placement",
    .source = "Graham, Bounds on Multiprocessing Timing Anomalies, 1969; Qi et al. (arXiv 2401.10241), 2023",
    .takes_orders = true,
    .allocator_makes_orders = true,
    .splits_backward = true,
    .make_orders = listed_orders,
};

}  // namespace isobar::schedules
