#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"

namespace isobar::allocators {

/// A lower bound on the objective of every placement, in any order of devices, with its proof.
struct Bound {
  Seconds value;
  Certificate certificate;  ///< fractional (docs/certificates.md has the formula)
};

/// Computes the fractional bound: layers may be cut anywhere and devices hold them in any order; memory holds in the
/// aggregate; transfers are free. O(L log L + D log D).
///
/// With F all work and infinite memory it is a closed form: bottleneck F / sum of speeds, sequential F / fastest,
/// pipeline min over k of (M-1+k) F / (sum of the k best speeds). The step under a schedule without a recurrence is
/// that of played_bound. Infinite when all memory together is too small.
Bound objective_bound(const CostModel& cost, const Goal& goal);

/// The same for the step of plans under any schedule, in which the busiest device computes all that it has: M times the
/// fractional bottleneck. `shares_stages`: also of plans with several devices for a stage, which may divide the
/// micro-batches of a layer among devices, and its memory but for activations.
Bound played_bound(const CostModel& cost, const Goal& goal, bool shares_stages);

/// Returns a factor c, at most M-1: a step takes at least c x the largest compute time of a stage + the sum over all
/// stages. For schedules of chains with more than one micro-batch in flight. O(L).
double turns_of_step(const CostModel& cost, const Goal& goal);

}  // namespace isobar::allocators
