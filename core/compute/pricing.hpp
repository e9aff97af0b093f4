#pragma once

#include "core/cluster/cluster.hpp"
#include "core/compute/measurements.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <string>
#include <vector>

namespace isobar::compute {

/// Gives a workload the times that its layers take by the compute model of operators on each type of a cluster's
/// devices (Workload::times), whole or by numbers of equal shards.
///
/// Numbers of shards are the powers of two up to 64; a layer among any other number takes its part of the whole.
///
/// Devices of a measured type take the times that were measured of it: of operators (layer_time), or of layers.
/// Where layers were measured among other numbers of shards, a shard takes its part of what the nearest ones take.
///
/// Layers also have the memory of the training software (layer_memory), with its context as workspace.
///
/// Does nothing for ComputeModel::Rate. Call it last: with_recomputation and with_micro_batch make other layers.
/// O(layers x types), and x products for the type of a table.
/// @throws InputError naming the key framework if it is missing or unknown, and for a device type without constants
/// that was not measured; as layer_time does for a table of another dtype, and for measured layers of another model.
void price(Workload& workload, const Cluster& cluster, const Measurements& measurements = {});

/// The least part of the times that `price` gives which a layer takes as trained (AsTrained), whole or of all its
/// shards together if stages of the plan are shared: by what products hide, by what shards of other types take, and by
/// what is beside exchanges of divided sequences.
/// Bounds of any placement are multiplied by it. 1 for plans without training software. O(kinds of layers x types).
double least_as_trained(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// What was measured of the devices of a workload that `price` has taken; nothing: of any other one.
const Measurements& measurements_of(const Workload& workload);

/// Where the constants of ComputeModel::Operators only stand for those of the workload's software, or of a device type
/// under it, by which training runs were fitted: a sentence each. None for types with a table, and for other workloads.
/// Requires a workload that `price` takes.
std::vector<std::string> notes_of_constants(const Workload& workload, const Cluster& cluster,
                                            const Measurements& measurements = {});

}  // namespace isobar::compute
