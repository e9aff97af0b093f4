#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes the plans that DT-FM's genetic algorithm finds, one for each shape of DT-FM (dtfm_costs.hpp).
///
/// A placement labels each device with a stage. From 100 random ones, each trial (SearchLimits::budget; without limits
/// 4,900, or what 300 s allow) draws two parents. The child has the labels of the second, with 5 random devices
/// labelled as in the first; devices of stages that then have too many, by index, go to the first stage that has too
/// few. A local search of up to 8 cycles improves the child: the candidate of a stage is its device with the fastest
/// pass to another of the stage, and gains, by moving to another stage, the mean of its passes there minus that fastest
/// pass. A cycle moves the candidate with the largest gain to its stage, then that stage's candidate, and so on until
/// one moves to the first stage; moved devices stay where they are. The best beginning of each cycle, closed, and the
/// best number of cycles count. The child replaces the dearer of its parents unless it costs more than both.
///
/// Its cost is DP + 2 PP with the shortest path through the stages: exact up to 10 stages, beyond by nearest stages and
/// reversals. Ignores compute and memory.
///
/// Corrects the published code: the acceptance test there compares with the first parent only, by a misplaced
/// parenthesis; its matching may have a slower pass than its bottleneck; and it is not seeded.
/// O(stages² · replicas³ + devices²) a trial. Deterministic for a seed.
/// Source: Yuan et al., Decentralized Training of Foundation Models in Heterogeneous Environments, NeurIPS 2022 (arXiv
/// 2206.01288), section 4; DS3Lab/DT-FM, commit cda948f, scheduler/heuristic_evolutionary_solver.
Proposals propose_by_dtfm(const HybridProblem& problem);

inline constexpr Allocator dtfm_allocator = {
    .name = "dtfm",
    .problem = "DT-FM's genetic algorithm: pipelines with replicas of one device, least cost of communication",
    .guarantee = "none; can cost half as much again as the optimum",
    .cost =
        "O(S² R³ + D²) a trial, S stages of R replicas; 4,900 trials or 300 s unless limited; at most 1,024 devices",
    .source = "DT-FM (arXiv 2206.01288), code cda948f, heuristic_evolutionary_solver",
    .propose = propose_by_dtfm,
    .takes_grid = true,
    .needs_stage_each = true,
    .rivalry = Rivalry::SameGoal,
    .most_devices = 1024,
};

}  // namespace isobar::allocators
