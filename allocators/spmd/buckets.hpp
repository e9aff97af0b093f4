#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <vector>

namespace isobar::allocators::spmd {

/// The gradient of a parameter that each device has.
struct ReplicaGradient {
  std::size_t parameter = 0;  ///< its operator
  Bytes size;
  Seconds ready = {};  ///< when the last device has made it, since the step began
};

/// The gradients that the devices of a plan add up, in the order in which backward makes them. `ready` is 0.
std::vector<ReplicaGradient> gradients_of(const Plan& plan, const Workload& workload);
/// The same with their times, as the plan's passes are played if each gradient ends one.
/// @throws InputError for a step that is too long to be played.
std::vector<ReplicaGradient> played_gradients(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// Adds gradients to a bucket until it has `first` bytes, and to each later one until it has `others`; the one that
/// reaches them is in the bucket. Returns the last parameter of each (Sync::bucket_ends).
/// Source: PyTorch's DistributedDataParallel after its first step, with 1 MiB and 25 MiB.
std::vector<std::size_t> bucket_ends_by_size(const std::vector<ReplicaGradient>& gradients, Bytes first, Bytes others);

/// Joins the gradients that became ready in the same cycle, up to `most` bytes; a larger one is alone. Cycles begin
/// with the step.
/// Source: Horovod's fusion, with cycles of 1 ms and 128 MiB, in which the ranks agree on what is ready.
std::vector<std::size_t> bucket_ends_by_cycle(const std::vector<ReplicaGradient>& gradients, Seconds cycle, Bytes most);

/// Lets backward end a part with the last gradient of each bucket, so that it is added up as soon as it is made.
/// Requires devices that divide samples and nothing else, whose parts may begin anywhere.
void end_parts_with_buckets(Plan& plan, const Workload& workload);

}  // namespace isobar::allocators::spmd
