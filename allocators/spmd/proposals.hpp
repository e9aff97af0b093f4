#pragma once

#include "allocators/allocator.hpp"
#include "allocators/spmd/strategy.hpp"

namespace isobar::allocators {

/// Proposes the divisions of operators with the least step by the search's costs (allocators/spmd/spmd_plan.hpp) among
/// all devices, among those of each site, and on the fastest device alone. Sites of as many devices each may also be
/// replicas. With more than two micro-batches, or where nothing else fits, sites may be groups of a pipeline
/// (pipeline_search.hpp), if its step is below all others' even when all slices of a tensor share links between groups,
/// which predictions leave out. Costs add up gradients one by one, so that it proposes the plan of propose_ddp, too.
/// @throws InputError for a platform with a data server.
Proposals propose_divisions(const HybridProblem& problem);

/// Propose data parallelism: each device computes its samples with all parameters, even ones or in proportion to the
/// devices' speeds. A part for each layer of the model: the gradients of one are added up during the backward of the
/// next.
Proposals propose_even_samples(const HybridProblem& problem);
Proposals propose_samples_by_speed(const HybridProblem& problem);

/// Propose data parallelism as training systems have it, with parts that end with a bucket of gradients: PyTorch's
/// buckets by size, and Horovod's by the times at which gradients are ready.
Proposals propose_ddp(const HybridProblem& problem);
Proposals propose_horovod(const HybridProblem& problem);

/// Propose experts divided among all devices, each of which has even samples and all other parameters. Gradients of
/// those are added up together after the backward pass. Slots are for the samples of a device, or tokens go to experts
/// by index and without slots; `published`: nothing adds up gradients.
/// No plan without experts, or if devices do not divide them and the samples.
Proposals propose_deepspeed_moe(const HybridProblem& problem);
Proposals propose_fastmoe(const HybridProblem& problem);
Proposals propose_published_fastmoe(const HybridProblem& problem);

inline constexpr Allocator spmd_allocator = {
    .name = spmd::allocator_name,
    .problem =
        "how all devices, or those of one site, divide each operator, and their shares; also with sites as "
        "replicas or as groups of a pipeline",
    .guarantee = "the least cost of all strategies for the shares, which take turns with strategies",
    .cost = "O(operators) labels, exponential in the width of the graph",
    .source = "HiDup (Zhang et al., SoCC 2022) and HAP (Zhang et al., EuroSys 2024), with own costs",
    .propose = propose_divisions,
    .takes_share_rule = true,
    .divides_operators = true,
    .rivalry = Rivalry::SameGoal,
};
inline constexpr Allocator ddp_allocator = {
    .name = "ddp",
    .problem = "the same samples and all parameters on each device, gradients added up in buckets of 25 MiB",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "Li et al., PyTorch Distributed, VLDB 2020",
    .propose = propose_ddp,
    .divides_operators = true,
    .is_sequential = true,
    .rivalry = Rivalry::SameGoal,
};
inline constexpr Allocator deepspeed_moe_allocator = {
    .name = "deepspeed-moe",
    .problem = "experts divided among all devices, even samples and all other parameters on each",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "Rajbhandari et al., DeepSpeed-MoE, ICML 2022",
    .propose = propose_deepspeed_moe,
    .divides_operators = true,
    .is_sequential = true,
};
inline constexpr Allocator dp_cp_allocator = {
    .name = "dp-cp",
    .problem = "samples in proportion to the speed of each device, all parameters on each",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "as compared in HAP (Zhang et al., EuroSys 2024)",
    .propose = propose_samples_by_speed,
    .divides_operators = true,
    .rivalry = Rivalry::SameGoal,
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

inline constexpr Allocator fastmoe_allocator = {
    .name = "fastmoe",
    .problem = "as deepspeed-moe, with all tokens sent to their experts by index",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "He et al., FastMoE, 2021 (arXiv 2103.13262)",
    .propose = propose_fastmoe,
    .divides_operators = true,
    .is_sequential = true,
};
inline constexpr Allocator published_fastmoe_allocator = {
    .name = "fastmoe-published",
    .problem = "as fastmoe, without adding up gradients: replicas of parameters drift apart",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "the script that HiDup (Zhang et al., SoCC 2022) compares with",
    .propose = propose_published_fastmoe,
    .divides_operators = true,
    .is_sequential = true,
};
inline constexpr Allocator horovod_allocator = {
    .name = "horovod",
    .problem = "the same samples and all parameters on each device, gradients added up in cycles of 1 ms",
    .guarantee = "none",
    .cost = "O(operators)",
    .source = "Sergeev and Del Balso, Horovod, 2018 (arXiv 1802.05799)",
    .propose = propose_horovod,
    .divides_operators = true,
    .is_sequential = true,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators
