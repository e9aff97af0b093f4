#pragma once

#include "allocators/allocator.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace isobar::allocators {

/// A pipeline of stages with as many replicas each, of one device each.
struct DtFmShape {
  std::size_t stages = 1;
  std::size_t replicas = 1;
};

/// DT-FM's cost of communication for plans of one shape (docs/costs.md#dt-fms-cost): DP + 2 PP.
///
/// DP is the longest gradient sync of a stage, in which each replica exchanges its part of the gradients with each
/// other one; PP is the sum over neighbouring stages of the slowest transfer between their replicas.
/// O(devices²) paths and memory.
/// Source: Yuan et al., Decentralized Training of Foundation Models in Heterogeneous Environments, NeurIPS 2022 (arXiv
/// 2206.01288), section 3.
class DtFmCosts {
 public:
  /// `gradients`: those of the largest stage. `transfers`: the largest between two stages, for all micro-batches of a
  /// replica.
  DtFmCosts(const Cluster& cluster, DtFmShape shape, Bytes gradients, Bytes transfers);

  std::size_t stages() const { return shape_.stages; }
  std::size_t replicas() const { return shape_.replicas; }
  std::size_t devices() const { return devices_; }
  /// Whether every device has a replica of a stage.
  bool uses_all() const { return stages() * replicas() == devices(); }

  /// What a device takes for its exchange with another replica of its stage, in seconds.
  double sync(std::size_t device, std::size_t other) const { return sync_[device * devices_ + other]; }
  /// What the micro-batches of a replica take from a device to one of the next stage, in seconds.
  double pass(std::size_t from, std::size_t to) const { return pass_[from * devices_ + to]; }

  /// The gradient sync of a stage on these devices, in seconds.
  double sync_of(std::span<const std::size_t> stage) const;
  /// A time that no stage's sync is below in any plan: that of the device with the worst best partners. O(devices²).
  double least_sync() const;
  /// The fastest pass between two devices, in seconds. O(devices²).
  double least_pass() const;

 private:
  DtFmShape shape_;
  std::size_t devices_;
  std::vector<double> sync_;
  std::vector<double> pass_;
};

/// The devices of each replica of each stage.
using DtFmGroups = std::vector<std::vector<std::size_t>>;

/// The least possible slowest pass from the devices of a stage to those of the next, each to one, in seconds.
/// `partners`: receives the device for each of `from`, if given. O(replicas³).
double slowest_pass(const DtFmCosts& costs, const std::vector<std::size_t>& from, const std::vector<std::size_t>& to,
                    std::vector<std::size_t>* partners = nullptr);

/// The shapes of a problem: those of `--pipeline` and `--replicas`, else all that use all devices. Their replicas
/// divide the micro-batches, and their stages the layers.
std::vector<DtFmShape> dtfm_shapes(const HybridProblem& problem);
/// Why dtfm_shapes() are none.
std::string reason_of_no_shape(const HybridProblem& problem);

/// The costs of a problem's plans of one shape, whose stages have equal numbers of layers, one more the first ones.
DtFmCosts dtfm_costs(const HybridProblem& problem, const DtFmShape& shape);

/// The plan of these groups in the order of its stages; the replicas of each stage are put in the order in which the
/// slowest pass from the stage before is fastest.
Plan dtfm_plan(const HybridProblem& problem, const DtFmCosts& costs, DtFmGroups groups);

/// Writes what a priced plan claims for objective dtfm: its cost as objective, and a bound, if none is given, by the
/// least sync and the least passes. False, without a change, for a plan of another shape than DtFmShape, or whose
/// replicas take other numbers of micro-batches.
bool claim_dtfm_cost(Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::allocators
