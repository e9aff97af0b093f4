#pragma once

#include "core/cluster/cluster.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/device_constants.hpp"
#include "core/compute/known_pairs.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/plan/step_interval.hpp"
#include "core/units.hpp"

#include <optional>
#include <set>
#include <string>

/// How far a predicted step may be off (docs/fidelity.md). The width of the 80 % interval is the root of the sum of the
/// squares of independent causes, in the logarithm of the time. results/fidelity/interval.csv has the width of each.
namespace isobar::compute {

/// What is known of a predicted step.
struct StepBasis {
  std::set<std::string> types;               ///< of the plan's devices
  DeviceSource device = DeviceSource::Runs;  ///< of the type that is known least
  std::string least_known_type;              ///< that type
  PairSource pair = PairSource::Fitted;      ///< of the type and software that are known least
  std::string system;                        ///< the training software, as the workload names it
  double measured_fraction = 0;              ///< of the step: operators or layers that were measured on its devices
  double exposed_fraction = 0;               ///< of the step: neither computation nor a wait for other stages'
  bool spans_nodes = false;                  ///< the plan's devices are in several nodes
  double experts_fraction = 0;               ///< of the model's work: products of routed experts
};

/// The basis of a step of a plan that takes `step`; none for a plan without a training system. `workload` is the one
/// that `trained` was made of. O(layers + devices).
std::optional<StepBasis> basis_of(const Plan& plan, const AsTrained& trained, const Workload& workload,
                                  const Cluster& cluster, Seconds step);

/// Half the width of the 80 % interval, in the logarithm: the step takes between step / e^w and step · e^w. It grows no
/// wider when more is known of the devices or the software.
double half_width_of(const StepBasis& basis);

/// The interval of a step, and the causes of its width.
StepInterval interval_of(const StepBasis& basis, Seconds step);

/// How far the logarithm of the ratio of two predicted steps may be off: less than their own intervals, since what is
/// wrong of the same devices and software is wrong of both.
double ranking_width_of(const StepBasis& a, const StepBasis& b);

}  // namespace isobar::compute
