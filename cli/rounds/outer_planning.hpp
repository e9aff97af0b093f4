#pragma once

#include "allocators/allocator.hpp"
#include "cli/inputs.hpp"
#include "cli/planning/global_batch.hpp"
#include "cli/rounds/outer_options.hpp"
#include "core/outer/outer.hpp"
#include "core/plan/plan.hpp"
#include "schedules/rounds/played_round.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// What each site is planned with.
struct SiteSearch {
  std::string allocator;
  Goal goal;
  allocators::SearchLimits limits;
  std::vector<BatchSplit> splits;
};

/// The plan of rounds, or why there is none.
struct FoundRounds {
  std::optional<OuterPlan> plan;
  std::vector<std::string> reasons;  ///< why sites, or all of them, have no worker
};

/// Plans rounds: a worker for each site that has a plan and room for the outer state, in the order of the ring whose
/// slowest hop is fastest. Leaves out sites as long as that gives more samples per second. Where the options leave them
/// open (--outer auto), it takes the fewest steps, and then the codec, fragments and delay that change the numerics
/// least, with which workers compute steps for `wanted_utilization` of the time; the best of all where none reaches it.
/// @throws InputError for devices without a site, and for options that no plan can have.
FoundRounds plan_rounds(const Inputs& inputs, const SiteSearch& search, const OuterOptions& options);

/// The part of the time in which workers compute steps that --outer auto asks for.
inline constexpr double wanted_utilization = 0.95;

/// The workloads of a plan's workers, as their plans have them.
std::vector<Workload> workloads_of(const OuterPlan& plan, const Inputs& inputs);

/// Tokens of all workers in a second; samples where the model has no sequences.
double tokens_per_second(const OuterPlan& plan, Seconds round_time, const Workload& workload);

/// A plan of rounds for people; `round_time` may be another than the predicted one.
std::string summary_of(const OuterPlan& plan, const Workload& workload);

}  // namespace isobar::cli
