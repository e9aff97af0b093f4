#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// What a layer takes on a device: Workload::times of the device's type at its pace, or where these are not known the
/// layer's FLOPs over the device's speed in the workload's dtype.
LayerTimes times_on(const Workload& workload, std::size_t layer, const Device& device);
/// The sums over layers first..last, without times of shards. O(layers).
LayerTimes times_on(const Workload& workload, std::size_t first, std::size_t last, const Device& device);

/// What a shard of a replica of a stage takes, of the times of the whole layer.
LayerTimes times_of_shard(const LayerTimes& whole, const Layer& layer, const Stage& stage, std::size_t replica,
                          std::size_t shard);
/// What a shard of a replica of a stage takes for a layer of a workload on a device.
LayerTimes times_of_shard(const Workload& workload, std::size_t layer, const Device& device, const Stage& stage,
                          std::size_t replica, std::size_t shard);

/// What is to be computed of a layer: its FLOP, or where times are known the seconds that they are at a pace of 1.
struct LayerWork {
  Flops forward;
  Flops backward;
  Flops backward_weight;  ///< of `backward`
  Flops update;
};

/// The work of a layer that a device does in a second: its pace where the times of its type are known, or its speed.
FlopsPerSecond rate_of(const Workload& workload, const Device& device);
/// The work of the layers by these times (Workload::times); null: their FLOPs.
std::vector<LayerWork> work_of_layers(const Workload& workload, const std::vector<LayerTimes>* times);
/// The times by which layers are weighed and devices are compared: those of the first device's type; null: by FLOPs.
const std::vector<LayerTimes>* reference_times(const Workload& workload, const Cluster& cluster);

}  // namespace isobar
