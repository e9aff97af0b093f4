#pragma once

#include "allocators/allocator.hpp"
#include "allocators/spmd/strategy.hpp"

namespace isobar::allocators {

/// Proposes the divisions of operators with the least step by the search's costs (allocators/spmd/spmd_plan.hpp) among
/// all devices, among those of each site, and on the fastest device alone.
/// @throws InputError for a platform with a data server.
Proposals propose_divisions(const HybridProblem& problem);

/// Propose data parallelism: each device computes its samples with all parameters, even ones or in proportion to the
/// devices' speeds. A part for each layer of the model: the gradients of one are added up during the backward of the
/// next.
Proposals propose_even_samples(const HybridProblem& problem);
Proposals propose_samples_by_speed(const HybridProblem& problem);

inline constexpr Allocator spmd_allocator = {
    .name = spmd::allocator_name,
    .problem = "how all devices, or those of one site, divide each operator, and their shares",
    .guarantee = "the least cost of all strategies for the shares, which take turns with strategies",
    .cost = "O(operators) labels, exponential in the width of the graph",
    .source = "HiDup (Zhang et al., SoCC 2022) and HAP (Zhang et al., EuroSys 2024), with own costs",
    .propose = propose_divisions,
    .takes_share_rule = true,
    .divides_operators = true,
};
inline constexpr Allocator ddp_allocator = {
    .name = "ddp",
    .problem = "the same samples and all parameters on each device",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "Li et al., PyTorch Distributed, VLDB 2020",
    .propose = propose_even_samples,
    .divides_operators = true,
};
inline constexpr Allocator dp_cp_allocator = {
    .name = "dp-cp",
    .problem = "samples in proportion to the speed of each device, all parameters on each",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "as compared in HAP (Zhang et al., EuroSys 2024)",
    .propose = propose_samples_by_speed,
    .divides_operators = true,
};
inline constexpr Allocator dp_ev_allocator = {
    .name = "dp-ev",
    .problem = "even samples and all parameters on each device",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "as compared in HAP (Zhang et al., EuroSys 2024)",
    .propose = propose_even_samples,
    .divides_operators = true,
};

}  // namespace isobar::allocators
