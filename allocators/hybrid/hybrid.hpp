#pragma once

#include "allocators/allocator.hpp"

namespace isobar::allocators {

/// Proposes sets of pipelines: each has its own devices in any order, its own cuts and its own share of the step's
/// micro-batches, and a stage may be divided among devices of a kind (tensor parallelism).
///
/// 1. Starts: the best plans of `grid`, `amp` and `metis`, Piper's pipeline on one kind of devices, and on small or
///    unlike clusters a chain of `local-search`.
/// 2. Devices that a search need not tell apart are of one kind. Sets of shapes, which are pipelines of kinds with a
///    number of copies, are searched by simulated annealing over a closed form of the step (shapes.hpp,
///    shape_search.hpp): as if each transfer had its links to itself, and for several candidates also with shared
///    links. The best ones are laid out over devices in two ways, and their steps found without contention
///    (pipeline_steps.hpp).
/// 3. Small changes of cuts and shares improve the best plans as long as their step without contention gets shorter.
/// 4. Where there are only a few thousand different pipelines, every set of them is tried (enumeration.hpp). On up to
///    5 devices with 6 layers and 8 micro-batches no set of pipelines of single devices whose replicas divide nothing
///    has a shorter step without contention.
/// 5. Of the 16 best plans and all starts, the one with the least predicted step is proposed. Only those are played
///    whose step without contention is below it. If even the best plan is contended, shapes are searched with shared
///    links too.
///
/// Gradients are added up in a ring or, across sites, also hierarchically, in buckets or parts of stages where that
/// can help; replicas divide nothing, the optimizer's state, where nothing else fits also gradients, or if all
/// pipelines have the same cuts, all parameters.
/// Where software is to take the plan (SearchLimits::rules), sets of shapes have one shape with as many shards in each
/// stage, and what breaks the rules is left out.
///
/// If several candidates are asked for, to be simulated, they are the starts, with a chain of a short search by
/// `exact`, and in equal parts the best with shared links and the best without contention.
///
/// Of a workload whose sequences or experts are divided, each layer is a part of its stage, and it proposes grids, with
/// equal and with balanced cuts (propose_balanced_grids): the shapes above know no groups of replicas.
///
/// A budget counts moves of the annealing, plans that are improved and sets that are tried; the starts have limits of
/// their own. Never predicted to be slower than the starts. Deterministic for a seed without a time limit. Under
/// schedules with several stages on each device it proposes the best plan of `grid`, and for objective `dtfm` that of
/// `dtfm`.
///
/// Source: own; of the parts see the headers.
/// @throws InputError for a schedule whose orders an allocator makes for one placement.
Proposals propose_hybrids(const HybridProblem& problem);

inline constexpr Allocator hybrid_allocator = {
    .name = "hybrid",
    .problem = "any pipelines side by side: own devices, cuts and shares each, stages divided by tensor parallelism",
    .guarantee = "never worse than grid and amp; on 5 devices x 6 layers the least step of all sets of pipelines",
    .cost = "12,000 moves of a closed form in O(stages squared) a shape, then plays of the best plans",
    .source = "own",
    .propose = propose_hybrids,
    .takes_context = true,
    .takes_experts = true,
    .limits_degrees = true,
    .takes_offload = true,
};

}  // namespace isobar::allocators
