#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/framework.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <memory>
#include <vector>

namespace isobar::compute {

class Measurements;

/// What takes the passes of a micro-batch through layers, forward and backward, on the slowest of their devices.
struct PassParts {
  Seconds products;
  Seconds attention;
  Seconds memory_bound;
  Seconds launch;    ///< of the host, as far as it adds to what devices take
  Seconds tensor;    ///< among shards and parts of sequences: in no pass, as far as passes do not hide it
  Seconds pipeline;  ///< receiving, where that is a device's work

  Seconds all() const { return products + attention + memory_bound + launch + tensor + pipeline; }
  PassParts& operator+=(const PassParts& more);
};

/// The layers and devices of a plan as its training system (Plan::system) has them: what the layers of each stage take
/// on its own devices beside its own collectives, what the software of a pipeline adds, and the memory that all of it
/// needs. Everything that plays, checks or simulates a plan takes its layers and devices from here.
///
/// Devices that use the matrix of a layer on others have copies of it (with_tied_copies). Beyond that, of a plan
/// without such a system, and of one whose devices divide operators or use their machines, the layers and devices are
/// those that were given. Otherwise Workload::times has the types of the plan's devices, each with the times of its
/// stages' layers.
class AsTrained {
 public:
  /// Keeps references to `workload`, which recomputes what the plan says, and `cluster`. O(layers + devices), and a
  /// layer_time and a shard_collective_times for each kind of layer, group of devices and device type.
  /// @throws InputError as layer_time does, and for what measured layers do not have.
  AsTrained(const Plan& plan, const Workload& workload, const Cluster& cluster);

  const Workload& workload() const { return own_ ? own_->workload : *workload_; }
  const Cluster& cluster() const { return own_ ? own_->cluster : *cluster_; }
  /// By stage of the plan; empty without a system.
  const std::vector<PassParts>& parts() const { return parts_; }

 private:
  struct Own {
    Workload workload;
    Cluster cluster;
  };
  const Workload* workload_;
  const Cluster* cluster_;
  std::unique_ptr<Own> own_;
  std::vector<PassParts> parts_;
};

/// What replicas can divide at most under the training software of a workload; everything, if it names none.
Sharding most_divided(const Workload& workload);

/// Gives a plan the training software of its workload, with the flags that the workload changes, and its rules
/// (take_rules). Does nothing for workloads without training software, and for plans whose devices divide operators or
/// use their machines.
void take_system(Plan& plan, const Workload& workload);

}  // namespace isobar::compute
