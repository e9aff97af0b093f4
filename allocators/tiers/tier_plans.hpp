#pragma once

#include "allocators/allocator.hpp"
#include "allocators/tiers/window_costs.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

/// What the allocators for one device and its machine share. Internal to allocators/tiers.
namespace isobar::allocators {

/// Checks that layers can pass through a device once a step: one micro-batch and whole backward passes, or schedule
/// gpipe, and all layers but the first and the last recompute their activations. @throws InputError naming `allocator`;
/// and for a workload of fewer than three layers.
void require_passing(const HybridProblem& problem, std::string_view allocator);

/// A device of each kind that has a machine: those of the same rates and memories, on it and its machine, count as one.
std::vector<std::size_t> kinds_with_machine(const Cluster& cluster);

/// A plan of these stages for the problem's goal.
Plan plan_of(const HybridProblem& problem, std::vector<Stage> stages);

/// Which tier of a device is too small for `need`, and what would be enough.
std::string what_lacks(const WindowCosts& costs, const WindowMemory& need);
/// Why no plan was found: the first of the reasons of the kinds, or that no device has a machine.
std::string reason_of(const Cluster& cluster, const std::vector<std::string>& reasons);

}  // namespace isobar::allocators
