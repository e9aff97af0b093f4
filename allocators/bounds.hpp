#pragma once

#include "core/cost_model.hpp"
#include "core/plan.hpp"

#include <string>

namespace isobar::allocators {

/// A lower bound on the objective of every placement, in any order of devices, and what proves it.
struct Bound {
  Seconds value;
  std::string certificate;  ///< "fractional" (docs/allocators.md says the formula)
};

/// The fractional bound: layers may be cut anywhere and devices hold them in any order; memory holds in the aggregate;
/// transfers are free. O(L log L + D log D). Infinite memory makes it the closed form: bottleneck F / sum of speeds,
/// sequential F / fastest, pipeline min over k of (M-1+k) F / (sum of the k best speeds).
Bound objective_bound(const CostModel& cost, const Goal& goal);

/// What is wrong with the bound that a plan claims, or "": a `fractional` bound must not be above the one found anew;
/// `none` claims 0; a bound of `CBC` cannot be found anew in short, and is only held to be below the objective by the
/// checker. Any other certificate is refused.
std::string fault_of_bound(const Plan& plan, const Workload& workload, const Cluster& cluster);

}  // namespace isobar::allocators
