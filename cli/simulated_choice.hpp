#pragma once

#include "cli/global_batch.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The plan of least simulated step among candidates for one goal:
/// - the best placements of `allocator`, limits.candidates of them for each split;
/// - those of even, sky-dynamic, sky-dynamic-fixed, chain-dp, local-search and exact, within their own limits;
/// - those of chain-dp and local-search for each other objective under the goal's schedule and micro-batches.
/// Other searches and all simulations run in child processes, as many at a time as there are cores. A time limit is for
/// each search, over all splits. The plan has the best bound that is known for its goal and says in `simulated` what
/// was simulated.
///
/// Where `allocator` finds no placement, another one's is returned if there is any. A search or a simulation that fails
/// is reported on stderr and costs its candidate. When the process is asked to stop, the best simulated so far is
/// returned, or the first plan as it is; the caller looks at `interrupted`.
/// @throws what the first simulation threw, when all of them failed.
Plan choose_by_simulation(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                          const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);

}  // namespace isobar::cli
