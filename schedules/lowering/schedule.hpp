#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/order/order.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

#include <memory>
#include <vector>

namespace isobar::schedules {

/// Makes the Program of a checked, feasible plan. Computations take the times of their layers on the plan's devices,
/// which `cluster` has (core/costs/layer_times.hpp). A device may have several stages; its compute lane then executes
/// those of all, in the order of the plan's schedule. O(replicas + layers + slots of the orders) time and memory,
/// independent of the number of micro-batches, unless stages divide them in different ways. Keeps no reference to its
/// arguments.
///
/// A rank is a device (`devices_of`); the last rank is the data server, if the plan names one. Lanes of a rank, where
/// it has them, in this order:
/// - "compute": the tasks of its order, then an Update for each of its stages.
/// - "send activation", "send gradient": what its stages make for neighbouring stages on other devices.
/// - "receive activation", "receive gradient": what its stages need from those, and the input of stage 0.
/// - "sync gradients": the sum over the replicas of a stage, after the last backward of the stage. With sharded
///   optimizers or gradients each replica gets the sum of its part, which its Update updates.
/// - "sync": what all ranks need to know of all gradients, if the workload clips or scales them.
/// - "gather parameters": with sharded optimizers or gradients, the parameters that the other replicas have updated.
///   The next step's forwards of the stage wait for them.
/// - "gather for forwards", "gather for backwards": with sharded parameters, those of the other replicas for each pass,
///   after the task before the last one, or the last one of the same stage.
///
/// If a rank has several lanes of one kind, their names end in the stage to or from whose input they carry:
/// "send activation 3", and "receive gradient 3" for the gradient that stage 3 sends back; then, of several replicas,
/// in the other one's number: "send activation 3.1". The messages of a channel follow the order of the sender.
/// @throws InputError where the schedule has no orders for the plan.
std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// As above, with orders by rank in place of those of the plan's schedule. They must have a forward and a backward of
/// every micro-batch for each stage, all whole or all split, and must not deadlock.
///
/// Orders of forwards only make a program without gradients, gradient sync and updates that keeps no activations.
/// @throws std::logic_error for orders that lack a task; `at` throws it for a task before its input in the same lane.
std::unique_ptr<Program> make_program(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                      std::vector<Order> orders);

}  // namespace isobar::schedules
