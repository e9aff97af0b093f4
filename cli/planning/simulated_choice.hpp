#pragma once

#include "cli/planning/global_batch.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// The number of placements to simulate, as given at `place`. @throws InputError unless it is in 1 to most_candidates.
std::size_t candidates_from(const std::string& place, std::uint64_t count);

/// Returns the plan with the least simulated step among candidates for one goal:
/// - the best placements of `allocator`, limits.candidates of them for each split;
/// - those of its rivals (allocators/rivals.hpp), within their own limits.
/// Searches by other allocators and all simulations run in child processes, as many at a time as there are cores. The
/// time limit is for each search, over all splits. The plan carries the best bound known for its goal; its `simulated`
/// records what was simulated.
///
/// When `allocator` finds no placement, the plan may be another allocator's. A search or simulation that fails is
/// reported on stderr, and its candidate is dropped. When the process is asked to stop, returns the best candidate
/// simulated so far, or the first plan as it is; the caller checks `interrupted`.
/// @throws the exception of the first simulation, when all of them failed.
Plan choose_by_simulation(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                          const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);
/// The same, only of the best placements of `allocator`: within a budget the same on every machine.
Plan choose_own_by_simulation(const Inputs& inputs, const std::string& allocator, const Goal& goal,
                              const allocators::SearchLimits& limits, const std::vector<BatchSplit>& splits);

}  // namespace isobar::cli
